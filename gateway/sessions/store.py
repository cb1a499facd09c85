"""Sessions in Redis. A request holds its session by a lease, which ends with the request or with its gateway.

All keys of a tenant have its id as their hash tag, and a value is found only under its tenant: the same session id of
another tenant is another session. Connections are separate from the limiter's, which must not wait behind a
conversation.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec

from gateway.http.errors import Conflict, InvalidRequest, NotFound, Unavailable
from gateway.redis_client import AWAY
from gateway.redis_client.connection import ignore_outcome
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import Reply, encode
from gateway.sessions.packing import Unreadable, pack, unpack
from gateway.sessions.scripts import COMMIT, CREATE, OPEN, RELEASE, RENEW, SCRIPTS, SWAP

_log = logging.getLogger(__name__)

LEASE_S = 15.0
DEADLINE_S = 3.0
V = TypeVar("V")
M = TypeVar("M")


class _NobodyWatches:
    """Each call finds out for itself whether Redis is away, since nothing about a session can be decided without it."""

    def note_answer(self) -> None: ...

    def note_late(self) -> None: ...

    def note_silence(self) -> None: ...

    def note_connections(self, num_connections: int) -> None: ...


def open_pipeline(url: str) -> Pipeline:
    """The caller must `connect` it, run its `keep_forever`, and `close` it."""
    return Pipeline(url, deadline_s=DEADLINE_S, scripts=SCRIPTS, watch=_NobodyWatches())


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one value. key: the tenant's own, to read sealed values; is_sealed: whether to seal on writing."""

    tenant: str
    id: str
    key: bytes | None = None
    is_sealed: bool = False


@dataclass(frozen=True, slots=True)
class Kept(Generic[M, V]):
    meta: M
    value: V
    meta_bytes: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Terms:
    kind: str
    """The first part of the Redis keys."""
    noun: str
    ttl_s: int
    max_number: int
    """Limit per tenant."""


class Store(Generic[M, V]):
    """Every method raises Unavailable (`session_unavailable`) while Redis is away."""

    def __init__(self, redis: Pipeline, terms: Terms, *, meta: type[M], value: type[V]) -> None:
        self._redis = redis
        self._terms = terms
        self._meta = msgspec.json.Decoder(meta)
        self._type = value
        self._held: dict[str, Place] = {}

    async def open(self, place: Place, *, holder: str) -> Kept[M, V] | None:
        """The stored value, None for a new one; the caller holds the place until `commit` or `release`.

        Raises Conflict (`session_busy`, `session_unreadable`) and InvalidRequest (`too_many_sessions`).
        """
        terms = self._terms
        arguments = holder, _ms(LEASE_S), place.id, terms.max_number, _ms(terms.ttl_s)
        reply = await self._call(OPEN, place, arguments)
        assert isinstance(reply, list)
        word, meta, body = reply
        if word != b"ok":
            raise self._refusal(word, place)
        self._held[holder] = place
        try:
            return self._read(place, meta, body)
        except BaseException:
            self.release(place, holder=holder)
            raise

    async def commit(self, place: Place, meta: M, value: V, *, holder: str) -> bytes:
        """Store the value and release it. Returns the `before` for `swap`. Raises Conflict if the lease was lost."""
        meta_bytes = msgspec.json.encode(meta)
        ttl_ms = _ms(self._terms.ttl_s)
        word = await self._call(COMMIT, place, (holder, meta_bytes, self._pack(place, value), ttl_ms, place.id))
        self._held.pop(holder, None)
        if word != b"ok":
            raise Conflict(
                f"the {self._terms.noun} was lost or changed while this request was answered, which is not kept in it",
                code="session_lost",
            )
        return meta_bytes

    def release(self, place: Place, *, holder: str) -> None:
        """Does not wait, for use in `finally`. If the command does not arrive, the lease ends by itself."""
        if self._held.pop(holder, None) is not None:
            self._send_soon(RELEASE, place, (holder, place.id))

    async def get(self, place: Place) -> Kept[M, V]:
        """Raises NotFound and Conflict."""
        reply = await self._execute("HMGET", self._key(place), "meta", "body", place=place)
        assert isinstance(reply, list)
        kept = self._read(place, *reply)
        if kept is None:
            raise self._missing(place)
        return kept

    async def create(self, place: Place, meta: M, value: V) -> None:
        """Raises Conflict if there is a value already, and InvalidRequest (`too_many_sessions`)."""
        body, terms = self._pack(place, value), self._terms
        arguments = msgspec.json.encode(meta), body, _ms(terms.ttl_s), place.id, terms.max_number
        word = await self._call(CREATE, place, arguments)
        if word != b"ok":
            raise self._refusal(word, place)

    async def swap(self, place: Place, before: bytes, meta: M, value: V) -> bytes:
        """Replace a value whose meta is still `before`. Returns `ok`, or why not: `busy`, `none`, `changed`."""
        word = await self._call(SWAP, place, (before, msgspec.json.encode(meta), self._pack(place, value), place.id))
        assert isinstance(word, bytes)
        return word

    def undo_soon(self, place: Place, written: bytes, before: Kept[M, V] | None) -> None:
        """Undo what `commit` wrote, without waiting, unless the value has been changed since."""
        old = (before.meta_bytes, before.body) if before is not None else ("", "")
        self._send_soon(SWAP, place, (written, *old, place.id))

    async def delete(self, place: Place) -> None:
        """Raises NotFound, and Conflict while a request holds the value."""
        word = await self._call(SWAP, place, ("", "", "", place.id))
        if word == b"none":
            raise self._missing(place)
        if word != b"ok":
            raise self._refusal(word, place)

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[M], str | None]:
        """Metadata in the order of ids, and the `after` of the next page, None at the end."""
        index = Place(tenant, "")
        reply = await self._execute("ZRANGE", self._index(tenant), 0, -1, place=index)
        assert isinstance(reply, list)
        ids = sorted(each.decode() for each in reply if isinstance(each, bytes))
        ids = [each for each in ids if after is None or each > after]
        found: list[M] = []
        for i, session_id in enumerate(ids):
            if len(found) == limit:
                return found, ids[i - 1]
            meta = await self._execute("HGET", self._key(Place(tenant, session_id)), "meta", place=index)
            if isinstance(meta, bytes):
                found.append(self._meta.decode(meta))
        return found, None

    async def renew_forever(self) -> None:
        """Keeps leases alive as long as their requests and this gateway."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            for holder, place in self._held.items():
                self._send_soon(RENEW, place, (holder, _ms(LEASE_S), place.id))

    def _pack(self, place: Place, value: V) -> bytes:
        return pack(value, key=place.key if place.is_sealed else None, place=self._key(place))

    def _read(self, place: Place, meta: Reply, body: Reply) -> Kept[M, V] | None:
        if not isinstance(meta, bytes) or not isinstance(body, bytes):
            return None
        try:
            value = unpack(body, self._type, key=place.key, place=self._key(place))
            return Kept(self._meta.decode(meta), value, meta, body)
        except (Unreadable, msgspec.MsgspecError) as error:
            _log.warning("%s cannot be read: %s", self._key(place), error)
            raise Conflict(
                f"the {self._terms.noun} {place.id!r} cannot be read any more; delete it or use another",
                code="session_unreadable",
            ) from error

    def _key(self, place: Place) -> str:
        return f"{self._terms.kind}:{{{place.tenant}}}:{place.id}"

    def _index(self, tenant: str) -> str:
        return f"{self._terms.kind}-index:{{{tenant}}}"

    async def _call(self, script: str, place: Place, arguments: Sequence[str | bytes | int]) -> Reply:
        return await self._execute(*self._command(script, place, arguments), place=place)

    def _command(self, script: str, place: Place, arguments: Sequence[Any]) -> tuple[Any, ...]:
        lease = f"{self._terms.kind}-lease:{{{place.tenant}}}:{place.id}"
        return "EVALSHA", script, 3, self._key(place), lease, self._index(place.tenant), *arguments

    async def _execute(self, *parts: str | bytes | int, place: Place) -> Reply:
        try:
            return await self._redis.send(encode(*parts), order=_order(place)).future
        except AWAY as error:
            raise Unavailable(
                f"{self._terms.noun}s cannot be reached at the moment; other requests can",
                retry_after_s=2,
                code="session_unavailable",
            ) from error

    def _send_soon(self, script: str, place: Place, arguments: Sequence[str | bytes | int]) -> None:
        try:
            call = self._redis.send(encode(*self._command(script, place, arguments)), order=_order(place))
        except AWAY:
            return
        call.future.add_done_callback(ignore_outcome)

    def _refusal(self, word: Reply, place: Place) -> Exception:
        noun = self._terms.noun
        if word == b"busy":
            message = f"another request of the {noun} {place.id!r} is under way; send this one after its answer"
            return Conflict(message, code="session_busy")
        if word == b"taken":
            return Conflict(f"there is already a {noun} {place.id!r}", param="id")
        return InvalidRequest(
            f"there may be at most {self._terms.max_number} {noun}s at a time; delete some, or wait until they expire",
            code="too_many_sessions",
        )

    def _missing(self, place: Place) -> NotFound:
        return NotFound(f"there is no {self._terms.noun} {place.id!r}, or it has expired")


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _order(place: Place) -> int:
    """Makes commands for one session arrive in order."""
    return crc32(f"{place.tenant}:{place.id}".encode())
