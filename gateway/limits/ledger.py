"""The limiter's reads of the usage ledger, for when Redis has lost a counter or is away."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.limits.local import Account, Reading

FRESH_S = 3.0
STALE_S = 60.0
"""How long the last answer, of the ledger or of Redis, may be used while a new one is read behind it; requests admitted
here since are added."""
FAILED_S = 1.0
"""How long nobody asks again after a failure."""
SOON_S = 0.05
"""How long a request waits for a new answer while the last one still stands."""
MAX_READINGS = 10_000


class LedgerAway(Exception):
    """The ledger cannot be read. Callers must not assume zero usage."""


@dataclass(frozen=True, slots=True)
class Used:
    tokens_today: int
    spent_this_month: int
    """In 1e-9 dollars."""


class Ledger(Protocol):
    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        """The usage of a scope (`tenant`, `key:ID`, `user:ID`). Raises LedgerAway."""
        ...


@dataclass(slots=True)
class _Shelf:
    """A scope's last reading for a day, and the task that refreshes it."""

    reader: asyncio.Task[Reading] | None = None
    reading: Reading | None = None
    account: Account | None = None
    """The account whose closed sums are in the reading."""
    read_at: float = float("-inf")
    failed_at: float = float("-inf")


class Readings:
    """Readings of the ledger, which is asked at most once per scope in FRESH_S, however many requests need it."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._shelves: OrderedDict[tuple[UUID, str, int], _Shelf] = OrderedDict()

    async def get(
        self, tenant_id: UUID, scope: str, account: Account, now: datetime, *, patience_s: float = 0.0
    ) -> Reading:
        """A reading no older than FRESH_S or, if the ledger takes longer than `patience_s`, the last one of this day,
        up to STALE_S old. Raises LedgerAway if there is none either."""
        shelf = self._shelf((tenant_id, scope, now.toordinal()))
        fresh = self._kept(shelf, account, FRESH_S)
        if fresh is not None:
            return fresh
        stale = self._at_hand(shelf, account, now)
        try:
            reader = self._reader(shelf, tenant_id, scope, account, now)
            return await _result(reader, None if stale is None else patience_s)
        except LedgerAway:
            if stale is None:
                raise
            return stale

    async def get_fresh(
        self, tenant_id: UUID, scope: str, account: Account, now: datetime, *, is_patient: bool = True
    ) -> Reading:
        """A reading no older than FRESH_S, for counters that later requests build upon. Raises LedgerAway, unless
        `is_patient` also if the ledger takes longer than SOON_S while there is something for `get`."""
        shelf = self._shelf((tenant_id, scope, now.toordinal()))
        fresh = self._kept(shelf, account, FRESH_S)
        if fresh is not None:
            return fresh
        is_hurried = not is_patient and self._at_hand(shelf, account, now) is not None
        return await _result(self._reader(shelf, tenant_id, scope, account, now), SOON_S if is_hurried else None)

    def close(self) -> None:
        for shelf in self._shelves.values():
            if shelf.reader is not None:
                shelf.reader.cancel()

    def _reader(
        self, shelf: _Shelf, tenant_id: UUID, scope: str, account: Account, now: datetime
    ) -> asyncio.Task[Reading]:
        """The task that reads the ledger, started if none runs. Raises LedgerAway."""
        if shelf.reader is None or shelf.reader.done():
            if self._clock() - shelf.failed_at < FAILED_S:
                raise LedgerAway("it could not be read a moment ago")
            # A separate task, because the request that asks first may be cancelled while others wait with it.
            shelf.reader = asyncio.create_task(self._read(shelf, tenant_id, scope, account, now), name="ledger")
            shelf.reader.add_done_callback(lambda done: done.cancelled() or done.exception())
        return shelf.reader

    async def _read(self, shelf: _Shelf, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        began_at = self._clock()
        closed_tokens, closed_nanousd = account.closed_tokens, account.closed_nanousd
        try:
            used = await self._ledger.used(tenant_id, scope, now)
        except LedgerAway:
            shelf.failed_at = self._clock()
            raise
        shelf.reading = Reading(used.tokens_today, used.spent_this_month, closed_tokens, closed_nanousd, began_at)
        shelf.account, shelf.read_at = account, began_at
        return shelf.reading

    def _at_hand(self, shelf: _Shelf, account: Account, now: datetime) -> Reading | None:
        """The last answer of this day, of the ledger or of Redis."""
        told = account.told
        if told and told.day == now.toordinal() and self._clock() - told.at < STALE_S and told.at >= shelf.read_at:
            return told.reading
        return self._kept(shelf, account, STALE_S)

    def _kept(self, shelf: _Shelf, account: Account, max_age_s: float) -> Reading | None:
        reading = shelf.reading
        if reading is None or self._clock() - shelf.read_at >= max_age_s:
            return None
        # The account was dropped, and this one has counted from zero since.
        return reading if shelf.account is account else replace(reading, closed_tokens=0, closed_nanousd=0)

    def _shelf(self, key: tuple[UUID, str, int]) -> _Shelf:
        shelf = self._shelves.setdefault(key, _Shelf())
        self._shelves.move_to_end(key)
        if len(self._shelves) > MAX_READINGS:
            idlest = next(iter(self._shelves))
            reader = self._shelves[idlest].reader
            if reader is None or reader.done():
                del self._shelves[idlest]
        return shelf


async def _result(reader: asyncio.Task[Reading], patience_s: float | None) -> Reading:
    """Raises LedgerAway if it takes longer."""
    if patience_s != 0:
        await asyncio.wait([reader], timeout=patience_s)
    if not reader.done() or reader.cancelled():
        raise LedgerAway("it does not answer")
    return reader.result()
