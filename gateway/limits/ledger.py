"""What the limiter asks of the usage ledger when Redis has lost a counter, or is away."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.limits.local import Account, Reading

FRESH_S = 3.0
STALE_S = 60.0
"""While the ledger cannot be read, its last answer stands this long: what was admitted here since is added anyway."""
FAILED_S = 1.0
"""After a failure nobody asks again for so long."""
MAX_READINGS = 10_000


class LedgerAway(Exception):
    """The ledger cannot say; then nobody may assume zero."""


@dataclass(frozen=True, slots=True)
class Used:
    tokens_today: int
    spent_this_month: int
    """In 1e-9 dollars."""


class Ledger(Protocol):
    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        """What a scope (`tenant`, `key:ID`, `user:ID`) has used. Raises LedgerAway."""
        ...


@dataclass(slots=True)
class _Shelf:
    """A scope's last reading. Whoever reads holds the lock; who waits for it finds what was read."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading: Reading | None = None
    day: int = 0
    read_at: float = float("-inf")
    failed_at: float = float("-inf")


class Readings:
    """The ledger, asked at most once in FRESH_S for a scope, however many requests want to know."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._shelves: OrderedDict[tuple[UUID, str], _Shelf] = OrderedDict()

    async def get(self, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        """Raises LedgerAway."""
        shelf = self._shelf((tenant_id, scope))
        fresh = self._kept(shelf, now, FRESH_S)
        if fresh is not None:
            return fresh
        async with shelf.lock:
            fresh = self._kept(shelf, now, FRESH_S)
            if fresh is not None:
                return fresh
            try:
                return await self._read(shelf, tenant_id, scope, account, now)
            except LedgerAway:
                shelf.failed_at = self._clock()
                stale = self._kept(shelf, now, STALE_S)
                if stale is None:
                    raise
                return stale

    async def _read(self, shelf: _Shelf, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Reading:
        began_at = self._clock()
        if began_at - shelf.failed_at < FAILED_S:
            raise LedgerAway("it could not be read a moment ago")
        closed_tokens, closed_nanousd = account.closed_tokens, account.closed_nanousd
        used = await self._ledger.used(tenant_id, scope, now)
        shelf.reading = Reading(used.tokens_today, used.spent_this_month, closed_tokens, closed_nanousd)
        shelf.day, shelf.read_at = now.toordinal(), began_at
        return shelf.reading

    def _kept(self, shelf: _Shelf, now: datetime, max_age_s: float) -> Reading | None:
        is_kept = shelf.day == now.toordinal() and self._clock() - shelf.read_at < max_age_s
        return shelf.reading if is_kept else None

    def _shelf(self, key: tuple[UUID, str]) -> _Shelf:
        shelf = self._shelves.setdefault(key, _Shelf())
        self._shelves.move_to_end(key)
        if len(self._shelves) > MAX_READINGS:
            idlest = next(iter(self._shelves))
            if not self._shelves[idlest].lock.locked():
                del self._shelves[idlest]
        return shelf
