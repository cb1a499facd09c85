"""Authentication without I/O on the hot path: keys in use are held in memory and read again every second."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.keys.fields import NEVER_S, KeyFields
from gateway.domain.keys.lookups import BATCH, LookupFailed, Lookups
from gateway.domain.keys.queries import key_rows
from gateway.domain.keys.rehashing import Rehash, rehash_of
from gateway.domain.keys.secret import lookup_prefix, pepper_behind
from gateway.domain.principal import Principal
from gateway.http.errors import Forbidden, Unauthenticated, Unavailable
from gateway.peppers import Peppers

_log = logging.getLogger(__name__)

REFRESH_S = 1.0
LEAST_PAUSE_S = 0.2
FRESH_S = 2.0
"""A revoked key is refused everywhere after this time, as long as the database answers at once.

The time counts from the answer, and ends at the latest twice as long after the question. An answer comes late to an
event loop that lags. If the time counted from the question, a key would not be fresh until the next answer, its
requests would wait for that, and under overload they could not be refused cheaply."""
STALE_S = 600.0
"""How long known keys keep working while the database is away."""
IDLE_S = 600.0
AWAY_AFTER_S = 0.8
"""A database silent for this long counts as away. Less than FRESH_S - REFRESH_S, so that known keys never wait."""
PATIENCE_S = 2.0
"""How long the first request with an unknown key waits."""
QUERY_DEADLINE_S = 5.0
MAX_ENTRIES = 20_000
MAX_MISSES = 10_000
"""Prefixes that do not exist are remembered separately, so that guessing cannot push out real keys."""
_MAX_FORMS = 4
"""How many headers are remembered for one key: `Bearer x`, `bearer x` and the like."""
_NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class _Entry:
    row: KeyFields
    principal: Principal
    read_at: float
    fresh_until: float
    used_at: float
    ends_s: float
    """The wall-clock time from which the key is refused."""
    let_in_at: float = _NEVER
    """When the key was last used with its secret."""
    fingerprints: list[bytes] = field(default_factory=list)

    @property
    def is_suspended(self) -> bool:
        return self.row.suspended_at is not None

    def is_over(self) -> bool:
        return self.ends_s != NEVER_S and time.time() >= self.ends_s


class Keyring:
    def __init__(self, sessions: Sessions, *, peppers: Peppers, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._clock = clock
        self._peppers = peppers
        self._outdated: dict[bytes, Rehash] = {}
        self._entries: dict[str, _Entry] = {}
        self._by_fingerprint: dict[bytes, _Entry] = {}
        self._misses: dict[str, float] = {}
        self._lookups = Lookups(self._read)
        self._is_away = False
        self._complained_at = _NEVER
        self._num_forgotten = 0

    def known(self, authorization: bytes | str) -> Principal | None:
        """The caller of a request with this Authorization header, if a header of exactly these bytes was accepted
        before and its key still is; None: ask `authenticate`. No I/O and no HMAC, 1 to 2 microseconds.

        The lookup's timing reveals nothing about keys: it compares SHA-256 digests of whole headers, and nobody can
        choose a digest that shares a prefix with a stored one without the key. Memory holds digests, not keys.
        """
        entry = self._by_fingerprint.get(_fingerprint(authorization))
        if entry is None or entry.is_suspended or entry.is_over():
            return None
        now = self._clock()
        if not self._is_good(entry, now):
            return None
        entry.used_at = entry.let_in_at = now
        return entry.principal

    async def authenticate(self, authorization: bytes | str | None) -> Principal:
        """The caller of a request with this Authorization header. Raises Unauthenticated, Forbidden or Unavailable."""
        header = authorization or b""
        if principal := self.known(header):
            return principal
        text = header.decode("latin-1") if isinstance(header, bytes) else header
        scheme, _, key = text.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("send your API key as `Authorization: Bearer tg-...`")
        key = key.strip()
        await self._find(lookup_prefix(key))
        # Hundreds of requests may have waited for this read, and most of their headers were accepted before.
        if principal := self.known(header):
            return principal
        entry = await self._verified(key)
        # A header that is not ASCII differs as bytes and as text, and one form must not be taken for the other.
        if text.isascii():
            self._remember(_fingerprint(header), entry)
        return entry.principal

    async def authenticate_key(self, key: str) -> Principal:
        """As `authenticate`, for a key that did not come in a header."""
        return (await self._verified(key)).principal

    async def principal_of(self, prefix: str) -> Principal:
        """The principal of a key, for work in its name and without its secret.

        The key was accepted before. Raises Unauthenticated, Forbidden or Unavailable.
        """
        return self._let_in(await self._find(prefix))

    def forget(self) -> None:
        """Make everything be read again, after a change through the admin plane."""
        self._num_forgotten += 1
        self._lookups.forget()
        self._misses.clear()
        for entry in self._entries.values():
            entry.fresh_until = _NEVER

    def end(self, prefix: str) -> None:
        """Make a key that was revoked or changed be read again before it is accepted, even if the database is away."""
        self._num_forgotten += 1
        self._lookups.forget()
        self._drop(prefix)

    def used_since(self, moment: float) -> dict[UUID, datetime]:
        """Keys that were accepted since `moment` (on our own clock), and when they last were."""
        now, now_utc = self._clock(), utc_now()
        found: dict[UUID, datetime] = {}
        for entry in self._entries.values():
            if entry.let_in_at >= moment:
                at, key_id = now_utc - timedelta(seconds=now - entry.let_in_at), entry.principal.key_id
                found[key_id] = max(at, found.get(key_id, at))
        return found

    def take_outdated(self) -> list[Rehash]:
        """The new hashes of keys that were accepted since the last call but are not under the current pepper."""
        found, self._outdated = self._outdated, {}
        return list(found.values())

    async def refresh_forever(self) -> None:
        elapsed_s = 0.0
        while True:
            # The period counts from start to start: what a slow read returned is older than its end suggests, and must
            # be read again before it is stale.
            await asyncio.sleep(max(LEAST_PAUSE_S, REFRESH_S - elapsed_s))
            began_at = time.monotonic()
            self._drop_idle(self._clock())
            prefixes = list(self._entries)
            for start in range(0, len(prefixes), BATCH):
                try:
                    await self._read(prefixes[start : start + BATCH])
                except LookupFailed:
                    break
            elapsed_s = time.monotonic() - began_at

    async def _verified(self, key: str) -> _Entry:
        prefix = lookup_prefix(key)
        entry = await self._find(prefix)
        row = None if entry is None else entry.row
        pepper = row and pepper_behind(row.secret_hash, key, pepper_id=row.pepper_id, peppers=self._peppers)
        if entry is None or row is None or pepper is None:
            raise Unauthenticated("this API key is wrong or was revoked")
        self._let_in(entry)
        if rehash := rehash_of(row, key, pepper, self._peppers):
            self._outdated[row.secret_hash] = rehash
        entry.let_in_at = self._clock()
        return entry

    def _let_in(self, entry: _Entry | None) -> Principal:
        if entry is None:
            raise Unauthenticated("this API key was revoked")
        if entry.is_over():
            raise Unauthenticated("this API key has expired, or was replaced by a rotation; ask for the new one")
        if entry.is_suspended:
            raise Forbidden("this tenant is suspended; ask the platform's operator", code="tenant_suspended")
        entry.used_at = self._clock()
        return entry.principal

    async def _find(self, prefix: str) -> _Entry | None:
        now = self._clock()
        entry = self._entries.get(prefix)
        if entry is not None and self._is_good(entry, now):
            return entry
        if now - self._misses.get(prefix, _NEVER) < FRESH_S:
            return None
        try:
            await self._lookups.wait_for(prefix, patience_s=PATIENCE_S if entry is None else AWAY_AFTER_S)
        except LookupFailed as error:
            entry = self._entries.get(prefix)
            if entry is None or now - entry.read_at >= STALE_S:
                raise Unavailable("keys cannot be checked at the moment", retry_after_s=2) from error
            return entry
        return self._entries.get(prefix)

    def _remember(self, fingerprint: bytes, entry: _Entry) -> None:
        if len(entry.fingerprints) < _MAX_FORMS and fingerprint not in self._by_fingerprint:
            entry.fingerprints.append(fingerprint)
            self._by_fingerprint[fingerprint] = entry

    def _is_good(self, entry: _Entry, now: float) -> bool:
        return now < entry.fresh_until or (self._is_away and now - entry.read_at < STALE_S)

    async def _read(self, prefixes: Collection[str]) -> None:
        """Bring the entries of these prefixes up to date. Raises LookupFailed."""
        asked_at, num_forgotten = self._clock(), self._num_forgotten
        alarm = asyncio.get_running_loop().call_later(AWAY_AFTER_S, self._note_silent)
        try:
            async with asyncio.timeout(QUERY_DEADLINE_S), self._sessions() as session:
                rows = (await session.execute(key_rows(prefixes))).all()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._note_away(error)
            raise LookupFailed(str(error)) from error
        finally:
            alarm.cancel()
        self._is_away = False
        # A query that began before `forget` may have read the state before the change.
        fresh_until = min(self._clock(), asked_at + FRESH_S) + FRESH_S
        fresh_until = fresh_until if num_forgotten == self._num_forgotten else _NEVER
        found = set()
        for row in map(KeyFields._make, rows):
            found.add(row.prefix)
            self._take(row, asked_at=asked_at, fresh_until=fresh_until)
        for prefix in prefixes:
            if prefix not in found:
                self._take_miss(prefix, asked_at=asked_at, is_fresh=fresh_until > asked_at)
        while len(self._entries) > MAX_ENTRIES:
            self._drop(next(iter(self._entries)))

    def _take(self, row: KeyFields, *, asked_at: float, fresh_until: float) -> None:
        prefix = row.prefix
        entry = self._entries.get(prefix)
        # A later question may have been answered before: that the key exists, or that it does not.
        if (entry is not None and entry.read_at > asked_at) or self._misses.get(prefix, _NEVER) > asked_at:
            return
        if entry is None or entry.row.secret_hash != row.secret_hash:
            self._drop(prefix)
            self._misses.pop(prefix, None)
            self._entries[prefix] = _Entry(row, row.principal(), asked_at, fresh_until, asked_at, row.ends_s)
            return
        entry.read_at, entry.fresh_until = asked_at, fresh_until
        # Nearly always nothing has changed.
        if entry.row != row:
            entry.row, entry.principal, entry.ends_s = row, row.principal(), row.ends_s

    def _take_miss(self, prefix: str, *, asked_at: float, is_fresh: bool) -> None:
        entry = self._entries.get(prefix)
        if entry is not None and entry.read_at > asked_at:
            return
        self._drop(prefix)
        if is_fresh:
            self._misses.pop(prefix, None)
            self._misses[prefix] = asked_at
        while len(self._misses) > MAX_MISSES:
            self._misses.pop(next(iter(self._misses)))

    def _drop(self, prefix: str) -> None:
        entry = self._entries.pop(prefix, None)
        if entry is not None:
            for fingerprint in entry.fingerprints:
                del self._by_fingerprint[fingerprint]

    def _drop_idle(self, now: float) -> None:
        for prefix in [prefix for prefix, entry in self._entries.items() if now - entry.used_at > IDLE_S]:
            self._drop(prefix)

    def _note_silent(self) -> None:
        self._is_away = True

    def _note_away(self, error: Exception) -> None:
        self._is_away = True
        if self._clock() - self._complained_at > STALE_S:
            self._complained_at = self._clock()
            _log.warning("keys cannot be read, known ones keep working for %g s: %r", STALE_S, error)


def _fingerprint(authorization: bytes | str) -> bytes:
    header = authorization if isinstance(authorization, bytes) else authorization.encode(errors="surrogatepass")
    return sha256(header).digest()
