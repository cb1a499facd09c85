"""Authentication without I/O on the hot path: keys in use are held in memory and read again every second."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from gateway.database import Sessions
from gateway.domain.keys.queries import live_keys
from gateway.domain.keys.secret import hash_key, is_same_hash, lookup_prefix
from gateway.domain.principal import Principal
from gateway.http.errors import Forbidden, Unauthenticated, Unavailable

_log = logging.getLogger(__name__)

REFRESH_S = 1.0
FRESH_S = 2.0
"""A revoked key is refused everywhere after this."""
STALE_S = 300.0
"""How long known keys keep working while the database is away."""
IDLE_S = 600.0
QUERY_DEADLINE_S = 5.0
MAX_ENTRIES = 20_000
MAX_MISSES = 10_000
"""Prefixes that do not exist are remembered apart, so that guessing cannot push real keys out."""
_BATCH = 500


@dataclass(slots=True)
class _Entry:
    secret_hash: bytes
    principal: Principal
    is_suspended: bool
    read_at: float
    used_at: float


class Keyring:
    def __init__(self, sessions: Sessions, *, pepper: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._clock = clock
        self._pepper = pepper
        self._entries: dict[str, _Entry] = {}
        self._misses: dict[str, float] = {}

    async def authenticate(self, authorization: str | None) -> Principal:
        """The caller of a request with this Authorization header. Raises Unauthenticated or Forbidden."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("send your API key as `Authorization: Bearer tg-...`")
        return await self.authenticate_key(key.strip())

    async def authenticate_key(self, key: str) -> Principal:
        entry = await self._entry(lookup_prefix(key))
        if entry is None or not is_same_hash(entry.secret_hash, hash_key(key, pepper=self._pepper)):
            raise Unauthenticated("this API key is wrong or was revoked")
        if entry.is_suspended:
            raise Forbidden("this tenant is suspended; ask the platform's operator", code="tenant_suspended")
        return entry.principal

    def forget(self) -> None:
        """Read everything anew: after a change through this gateway's own admin plane."""
        for entry in self._entries.values():
            entry.read_at = float("-inf")
        self._misses.clear()

    async def refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            self._drop_idle(self._clock())
            prefixes = list(self._entries)
            for start in range(0, len(prefixes), _BATCH):
                try:
                    await self._load(prefixes[start : start + _BATCH])
                except (SQLAlchemyError, OSError, TimeoutError) as error:
                    _log.warning("cannot read keys, known ones keep working for a while: %s", error)

    async def _entry(self, prefix: str) -> _Entry | None:
        now = self._clock()
        entry = self._entries.get(prefix)
        if entry is not None and now - entry.read_at < FRESH_S:
            entry.used_at = now
            return entry
        if now - self._misses.get(prefix, float("-inf")) < FRESH_S:
            return None
        try:
            await self._load([prefix])
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            if entry is not None and now - entry.read_at < STALE_S:
                return entry
            raise Unavailable("keys cannot be checked at the moment", retry_after_s=2) from error
        return self._entries.get(prefix)

    async def _load(self, prefixes: Collection[str]) -> None:
        asked_at = self._clock()
        async with asyncio.timeout(QUERY_DEADLINE_S), self._sessions() as session:
            rows = (await session.execute(live_keys(prefixes))).all()
        found = set()
        for key, tenant in rows:
            known = self._entries.get(key.prefix)
            principal = Principal(tenant.id, tenant.name, key.id, tenant.tier, frozenset(key.scopes))
            self._entries[key.prefix] = _Entry(
                secret_hash=key.secret_hash,
                principal=principal,
                is_suspended=tenant.suspended_at is not None,
                read_at=asked_at,
                used_at=known.used_at if known else asked_at,
            )
            found.add(key.prefix)
        for prefix in prefixes:
            if prefix not in found:
                self._entries.pop(prefix, None)
                self._remember_miss(prefix, asked_at)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.pop(next(iter(self._entries)))

    def _remember_miss(self, prefix: str, now: float) -> None:
        self._misses.pop(prefix, None)
        self._misses[prefix] = now
        while len(self._misses) > MAX_MISSES:
            self._misses.pop(next(iter(self._misses)))

    def _drop_idle(self, now: float) -> None:
        idle = [prefix for prefix, entry in self._entries.items() if now - entry.used_at > IDLE_S]
        for prefix in idle:
            del self._entries[prefix]
