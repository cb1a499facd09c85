"""From an outbox into ClickHouse, a batch at a time, past rows that ClickHouse refuses.

A refused batch is halved until the rows are found. A row alone is at fault when ClickHouse refuses it, takes another
row in the same breath, and refuses it again: then it is set aside in the outbox. Without that proof the server's state
may be the cause (a table that is gone, a full disk), and setting good rows aside would lose their bill.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from gateway.metering.journal import ClosedEvent, Journal
from gateway.metering.store import EventRejected, InsertRefused, StoreUnavailable, UsageStore
from protocol.usage import UsageEvent

_log = logging.getLogger(__name__)

MAX_SUSPECTS = 8
"""So many refused rows while none passes mean that ClickHouse takes none at all: looking on would be 10,000 inserts."""


class NothingTaken(StoreUnavailable):
    """ClickHouse answers, and refuses every row that it was offered."""


@dataclass(frozen=True)
class _Suspect:
    closed: ClosedEvent
    error: InsertRefused


class Shipper:
    def __init__(self, store: UsageStore) -> None:
        self._store = store
        self._control: UsageEvent | None = None
        """The last event that ClickHouse took; taken again it is the same row."""

    def ship(self, journal: Journal, closed: Sequence[ClosedEvent]) -> None:
        """All of `closed` leave the queue: into ClickHouse, or aside. Raises StoreUnavailable."""
        try:
            self._insert(journal, closed)
        except InsertRefused as error:
            if self._control is not None and not isinstance(error, EventRejected):
                self._check_table(self._control)
            refused: list[_Suspect] = []
            suspects: list[_Suspect] = []
            self._search(journal, closed, refused, suspects)
            _set_aside(journal, refused)
            _set_aside(journal, [suspect for suspect in suspects if self._is_at_fault(journal, suspect)])

    def _search(
        self, journal: Journal, closed: Sequence[ClosedEvent], refused: list[_Suspect], suspects: list[_Suspect]
    ) -> None:
        """Ship what passes. `refused` gets what cannot be a row, `suspects` what ClickHouse refuses alone."""
        half = -(-len(closed) // 2)
        for part in filter(None, (closed[:half], closed[half:])):
            try:
                self._insert(journal, part)
            except InsertRefused as error:
                if len(part) > 1:
                    self._search(journal, part, refused, suspects)
                elif isinstance(error, EventRejected):
                    refused.append(_Suspect(part[0], error))
                else:
                    suspects.append(_Suspect(part[0], error))
                    self._check_hope(suspects)

    def _insert(self, journal: Journal, closed: Sequence[ClosedEvent]) -> None:
        self._store.insert([each.event for each in closed])
        self._control = closed[-1].event
        journal.delete_closed(each.seq for each in closed)

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

    def _is_at_fault(self, journal: Journal, suspect: _Suspect) -> bool:
        """False: it passed this time. Raises NothingTaken where ClickHouse has taken no other row either."""
        if self._control is None:
            self._give_up(suspect.error)
        self._check_table(self._control)
        try:
            self._insert(journal, [suspect.closed])
        except InsertRefused:
            return True
        return False

    def _give_up(self, error: InsertRefused) -> NoReturn:
        # The next connection brings the tables up to date, should they be the cause.
        self._store.close()
        raise NothingTaken(str(error)) from error


def _set_aside(journal: Journal, refused: Sequence[_Suspect]) -> None:
    for suspect in refused:
        journal.refuse(suspect.closed.seq, str(suspect.error))
    if refused:
        _log.error(
            "set aside %d usage events that ClickHouse refuses; the first is %s: %s",
            len(refused),
            refused[0].closed.event.request_id,
            refused[0].error,
        )
