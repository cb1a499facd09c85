"""The limiter's reads of the usage ledger, for when Redis has lost a counter or is away."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.limits.local import Account, Reading

FRESH_S = 3.0
STALE_S = 60.0
"""How long the ledger's last answer may be used while it cannot be read; requests admitted here since are added."""
FAILED_S = 1.0
"""How long nobody asks again after a failure."""
PATIENCE_S = 0.25
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
    read_at: float = float("-inf")
    failed_at: float = float("-inf")


class Readings:
    """Readings of the ledger, which is asked at most once per scope in FRESH_S, however many requests need it."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._shelves: OrderedDict[tuple[UUID, str, int], _Shelf] = OrderedDict()

    async def get(self, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        """A reading no older than FRESH_S or, if the ledger does not answer soon, the last one of this day, up to
        STALE_S old. Raises LedgerAway."""
        shelf = self._shelf((tenant_id, scope, now.toordinal()))
        fresh = self._kept(shelf, FRESH_S)
        if fresh is not None:
            return fresh
        stale = self._kept(shelf, STALE_S)
        try:
            return await self._wait_for(shelf, tenant_id, scope, account, now, None if stale is None else PATIENCE_S)
        except LedgerAway:
            if stale is None:
                raise
            return stale

    async def get_fresh(self, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        """A reading no older than FRESH_S, for counters that later requests build upon. Raises LedgerAway."""
        shelf = self._shelf((tenant_id, scope, now.toordinal()))
        fresh = self._kept(shelf, FRESH_S)
        return fresh or await self._wait_for(shelf, tenant_id, scope, account, now, None)

    def close(self) -> None:
        for shelf in self._shelves.values():
            if shelf.reader is not None:
                shelf.reader.cancel()

    async def _wait_for(
        self, shelf: _Shelf, tenant_id: UUID, scope: str, account: Account, now: datetime, patience_s: float | None
    ) -> Reading:
        if shelf.reader is None or shelf.reader.done():
            # A separate task, because the request that asks first may be cancelled while others wait with it.
            shelf.reader = asyncio.create_task(self._read(shelf, tenant_id, scope, account, now), name="ledger")
            shelf.reader.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([shelf.reader], timeout=patience_s)
        if not shelf.reader.done() or shelf.reader.cancelled():
            raise LedgerAway("it does not answer")
        return shelf.reader.result()

    async def _read(self, shelf: _Shelf, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        began_at = self._clock()
        if began_at - shelf.failed_at < FAILED_S:
            raise LedgerAway("it could not be read a moment ago")
        closed_tokens, closed_nanousd = account.closed_tokens, account.closed_nanousd
        try:
            used = await self._ledger.used(tenant_id, scope, now)
        except LedgerAway:
            shelf.failed_at = self._clock()
            raise
        shelf.reading = Reading(used.tokens_today, used.spent_this_month, closed_tokens, closed_nanousd)
        shelf.read_at = began_at
        return shelf.reading

    def _kept(self, shelf: _Shelf, max_age_s: float) -> Reading | None:
        return shelf.reading if self._clock() - shelf.read_at < max_age_s else None

    def _shelf(self, key: tuple[UUID, str, int]) -> _Shelf:
        shelf = self._shelves.setdefault(key, _Shelf())
        self._shelves.move_to_end(key)
        if len(self._shelves) > MAX_READINGS:
            idlest = next(iter(self._shelves))
            reader = self._shelves[idlest].reader
            if reader is None or reader.done():
                del self._shelves[idlest]
        return shelf
