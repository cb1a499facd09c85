"""Sessions in Redis. A request holds its session by a lease, which ends with it or with its gateway.

All keys of a tenant have its id for a hash tag, and every value is found under its tenant alone: another tenant's
session id is another session. Connections are apart from the limiter's, which must not wait behind a conversation.
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
from gateway.redis_client.line import ignore_outcome
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
    """Whether Redis is away each call finds out for itself: a session is nothing that could be decided without it."""

    def note_answer(self) -> None: ...

    def note_late(self) -> None: ...

    def note_lines(self, num_lines: int) -> None: ...


def open_pipeline(url: str) -> Pipeline:
    """`connect` it, run its `keep_forever`, `close` it."""
    return Pipeline(url, deadline_s=DEADLINE_S, scripts=SCRIPTS, watch=_NobodyWatches())


@dataclass(frozen=True, slots=True)
class Place:
    """Of one value. key: the tenant's own, to read what is sealed; is_sealed: what is written is."""

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
    """The first part of its keys."""
    noun: str
    ttl_s: int
    max_number: int
    """Of one tenant."""


class Store(Generic[M, V]):
    """Every method raises Unavailable (`session_unavailable`) while Redis is away."""

    def __init__(self, redis: Pipeline, terms: Terms, *, meta: type[M], value: type[V]) -> None:
        self._redis = redis
        self._terms = terms
        self._meta = msgspec.json.Decoder(meta)
        self._type = value
        self._held: dict[str, Place] = {}

    async def open(self, place: Place, *, holder: str) -> Kept[M, V] | None:
        """What is kept, None for what is new; the caller holds it until `commit` or `release`.

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
        """Keep it, and let it go. What `swap` knows it by. Raises Conflict where the lease was lost."""
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
        """Without waiting, for `finally`; what does not arrive ends with its lease."""
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
        """Raises Conflict where there is one already, and InvalidRequest (`too_many_sessions`)."""
        body, terms = self._pack(place, value), self._terms
        arguments = msgspec.json.encode(meta), body, _ms(terms.ttl_s), place.id, terms.max_number
        word = await self._call(CREATE, place, arguments)
        if word != b"ok":
            raise self._refusal(word, place)

    async def swap(self, place: Place, before: bytes, meta: M, value: V) -> bytes:
        """`ok`, or why not: `busy`, `none`, `changed`."""
        word = await self._call(SWAP, place, (before, msgspec.json.encode(meta), self._pack(place, value), place.id))
        assert isinstance(word, bytes)
        return word

    def undo_soon(self, place: Place, written: bytes, before: Kept[M, V] | None) -> None:
        """What `commit` wrote is as if it had not been, unless somebody went on from it."""
        old = (before.meta_bytes, before.body) if before is not None else ("", "")
        self._send_soon(SWAP, place, (written, *old, place.id))

    async def delete(self, place: Place) -> None:
        """Raises NotFound, and Conflict while a request holds it."""
        word = await self._call(SWAP, place, ("", "", "", place.id))
        if word == b"none":
            raise self._missing(place)
        if word != b"ok":
            raise self._refusal(word, place)

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[M], str | None]:
        """In the order of their ids."""
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
        """A lease lives as long as its request and this gateway."""
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
    """What is sent for one session arrives in order."""
    return crc32(f"{place.tenant}:{place.id}".encode())
