"""From an outbox or a topic into ClickHouse, a batch at a time, past rows that ClickHouse refuses.

A refused batch is halved until the rows are found. A row alone is at fault when ClickHouse refuses it, takes another
row in the same breath, and refuses it again: then it is refused to its source. Without that proof the server's state
may be the cause (a table that is gone, a full disk), and setting good rows aside would lose their bill.
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
"""So many refused rows while none passes mean that ClickHouse takes none at all: looking on would be 10,000 inserts."""


class NothingTaken(StoreUnavailable, Blocked):
    """ClickHouse answers, and refuses every row that it was offered."""


class Source(Protocol):
    """Where events come from, and where they leave once ClickHouse has them, or never will."""

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
        """The last event that ClickHouse took; taken again it is the same row."""

    def ship(self, source: Source, closed: Sequence[ClosedEvent]) -> int:
        """All of `closed` leave the source; how many ClickHouse refused for ever. Raises StoreUnavailable."""
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
        """Ship what passes; `suspects` gets what ClickHouse refuses alone."""
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
            # A table that was changed may take others all the same: the next round looks without it.
            self._control = None
            self._give_up(error)

    def _is_at_fault(self, source: Source, suspect: _Suspect) -> bool:
        """False: it passed this time. Raises NothingTaken where ClickHouse has taken no other row either."""
        if self._control is None:
            self._give_up(suspect.error)
        self._check_table(self._control)
        try:
            self._insert(source, [suspect.closed])
        except InsertRefused:
            return True
        return False

    def _give_up(self, error: InsertRefused) -> NoReturn:
        # The next connection brings the tables up to date, should they be the cause.
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
