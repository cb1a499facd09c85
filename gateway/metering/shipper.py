"""Ships batches of events from an outbox or a topic into ClickHouse and singles out the rows that ClickHouse refuses.

A refused batch is halved until the bad rows are found. A single row is at fault only if ClickHouse refuses it, accepts
another row right after, and refuses the first again; then the row is refused to its source. Without that proof the
server's state may be the cause (a missing table, a full disk), and setting good rows aside would lose their bill.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from gateway.metering.drain import Blocked
from gateway.metering.journal import ClosedEvent
from gateway.metering.store import InsertRefused, StoreUnavailable, UsageStore
from protocol.usage import UsageEvent

_log = logging.getLogger(__name__)

MAX_SUSPECTS = 8
"""After this many refused rows without a single accepted one, assume that ClickHouse accepts none: searching on would
cost 10,000 inserts."""


class NothingTaken(StoreUnavailable, Blocked):
    """ClickHouse answers, but refuses every row."""


class Source(Protocol):
    """Where events come from. They are deleted there once ClickHouse has them, or refused if it never will."""

    def delete_closed(self, seqs: Iterable[int]) -> None: ...
    def refuse(self, seq: int, reason: str) -> None: ...


@dataclass(frozen=True)
class _Suspect:
    closed: ClosedEvent
    error: InsertRefused


class Shipper:
    def __init__(self, store: UsageStore) -> None:
        self._store = store
        self._control: UsageEvent | None = None
        """The last event that ClickHouse accepted. Inserting it again yields the same row."""

    def ship(self, source: Source, closed: Sequence[ClosedEvent]) -> int:
        """Move all `closed` events out of the source; returns how many were set aside. Raises StoreUnavailable."""
        if not closed:
            return 0
        try:
            self._insert(source, closed)
        except InsertRefused:
            if self._control is not None:
                self._check_table(self._control)
            suspects: list[_Suspect] = []
            self._search(source, closed, suspects)
            refused = [suspect for suspect in suspects if self._is_at_fault(source, suspect)]
            _set_aside(source, refused)
            return len(refused)
        return 0

    def _search(self, source: Source, closed: Sequence[ClosedEvent], suspects: list[_Suspect]) -> None:
        """Ship the events that pass; append to `suspects` those that ClickHouse refuses even alone."""
        half = -(-len(closed) // 2)
        for part in filter(None, (closed[:half], closed[half:])):
            try:
                self._insert(source, part)
            except InsertRefused as error:
                if len(part) > 1:
                    self._search(source, part, suspects)
                else:
                    suspects.append(_Suspect(part[0], error))
                    self._check_hope(suspects)

    def _insert(self, source: Source, closed: Sequence[ClosedEvent]) -> None:
        self._store.insert([each.event for each in closed])
        self._control = closed[-1].event
        source.delete_closed(each.seq for each in closed)

    def _check_hope(self, suspects: Sequence[_Suspect]) -> None:
        if self._control is None and len(suspects) >= MAX_SUSPECTS:
            self._give_up(suspects[-1].error)

    def _check_table(self, control: UsageEvent) -> None:
        try:
            self._store.insert([control])
        except InsertRefused as error:
            # A changed table may refuse the control row yet accept others, so the next round starts without a control.
            self._control = None
            self._give_up(error)

    def _is_at_fault(self, source: Source, suspect: _Suspect) -> bool:
        """False if the row passed this time. Raises NothingTaken if ClickHouse does not accept any other row either."""
        if self._control is None:
            self._give_up(suspect.error)
        self._check_table(self._control)
        try:
            self._insert(source, [suspect.closed])
        except InsertRefused:
            return True
        return False

    def _give_up(self, error: InsertRefused) -> NoReturn:
        # The next connection migrates the tables, in case they are the cause.
        self._store.close()
        raise NothingTaken(str(error)) from error


def _set_aside(source: Source, refused: Sequence[_Suspect]) -> None:
    for suspect in refused:
        source.refuse(suspect.closed.seq, f"refused_by_clickhouse: {suspect.error}")
    if refused:
        _log.error(
            "set aside %d usage events that ClickHouse refuses; the first is %s: %s",
            len(refused),
            refused[0].closed.event.request_id,
            refused[0].error,
        )
