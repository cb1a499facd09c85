"""The claims of idempotency keys, and the answers given under them. Redis holds all of it.

    claim     'c' fingerprint token    a request is under way; expires LEASE_S after its gateway last renewed it
    answer    'a' fingerprint sealed   for KEPT_S
    too large 't' fingerprint          answered and billed, but not kept, for KEPT_S

The fingerprint identifies the request, so that a key cannot be used for a different one.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.http.errors import Conflict, InvalidRequest, Unavailable, Unprocessable
from gateway.idempotency.kept import AnswerSeal, KeptAnswer
from gateway.peppers import Peppers
from gateway.redis_client import AWAY
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import encode

_log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
KEPT_S = 24 * 3600
LEASE_S = 30
RENEW_S = 5.0
MAX_KEY_CHARS = 255
"""Stripe's limit."""
MAX_BODY_BYTES = 4 * 2**20
MAX_SEALED_BYTES = 2**20
"""Limit for a sealed answer; a larger one is not kept."""
_THREAD_BYTES = 64 * 1024
"""A longer body is compressed in a thread."""
_FINGERPRINT_BYTES = 32
_TOKEN_BYTES = 16

# Each script acts only on our own claim, because the key may have passed to another request.
_IF_OURS = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
_KEEP = _IF_OURS + "redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) return 1"
_RENEW = _IF_OURS + "return redis.call('EXPIRE', KEYS[1], ARGV[2])"
_FREE = _IF_OURS + "return redis.call('DEL', KEYS[1])"


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """This request is the first under its key."""

    name: str
    fingerprint: bytes
    value: bytes


def check_key(value: bytes) -> str:
    """Raises InvalidRequest."""
    key = value.decode("latin-1")
    if not 1 <= len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(f"{HEADER}: send 1 to {MAX_KEY_CHARS} printable ASCII characters", param=HEADER)
    return key


def fingerprint_of(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class AnswerStore:
    """Run `renew_forever` beside the server."""

    def __init__(
        self, redis: Pipeline, *, peppers: Peppers, is_away: Callable[[], bool], lease_s: int = LEASE_S
    ) -> None:
        self._lease_s = lease_s
        self._redis = redis
        self._seal = AnswerSeal(peppers)
        self._is_away = is_away
        self._claims: set[Claim] = set()

    async def claim(self, tenant: str, key: str, fingerprint: bytes) -> Claim | KeptAnswer:
        """Claim the key for the first request, or return the answer to the first request.

        Raises Unavailable without Redis, Conflict while the first request is under way or if its answer was not kept or
        cannot be opened, and Unprocessable if the key was used for another request.
        """
        name = f"tiergate:{{{tenant}}}:idempotency:{hashlib.sha256(key.encode()).hexdigest()}"
        claim = Claim(name, fingerprint, b"c" + fingerprint + os.urandom(_TOKEN_BYTES))
        found = await self._ask("SET", name, claim.value, "NX", "GET", "EX", self._lease_s)
        if found is None:
            self._claims.add(claim)
            return claim
        kind, seen, rest = found[:1], found[1 : 1 + _FINGERPRINT_BYTES], found[1 + _FINGERPRINT_BYTES :]
        if seen != fingerprint:
            raise Unprocessable(
                f"{HEADER}: another request was sent with this key; a new request needs a new key",
                param=HEADER,
                code="idempotency_key_reused",
            )
        if kind == b"c":
            raise KeyInUse
        if kind == b"t":
            raise _not_kept("is too large to be kept")
        answer = self._seal.open(rest, name=name)
        if answer is None:
            raise _not_kept("was sealed under a pepper that this gateway does not have")
        return answer

    async def keep(self, claim: Claim, answer: KeptAnswer | None) -> None:
        """Store the answer in Redis; None: it is too large. If Redis is away, the key is free when its lease ends."""
        self._claims.discard(claim)
        value = b"t" + claim.fingerprint
        if answer is not None:
            is_long = len(answer.body) > _THREAD_BYTES
            sealed = (
                await asyncio.to_thread(self._seal.seal, answer, name=claim.name)
                if is_long
                else self._seal.seal(answer, name=claim.name)
            )
            if len(sealed) <= MAX_SEALED_BYTES:
                value = b"a" + claim.fingerprint + sealed
        try:
            await self._redis.execute("EVAL", _KEEP, 1, claim.name, claim.value, value, KEPT_S)
        except AWAY as error:
            _log.warning("an answer under an idempotency key was not kept: %r", error)

    def free_soon(self, claim: Claim) -> None:
        """Free the key of a failed request, so that it may be used again. Does nothing once an answer is kept."""
        if claim in self._claims:
            self._claims.discard(claim)
            self._send_soon("EVAL", _FREE, 1, claim.name, claim.value)

    async def renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for claim in self._claims:
                self._send_soon("EVAL", _RENEW, 1, claim.name, claim.value, self._lease_s)

    async def _ask(self, *parts: str | bytes | int) -> bytes | None:
        if not self._is_away():
            try:
                found = await self._redis.execute(*parts)
                assert found is None or isinstance(found, bytes)
                return found
            except AWAY:
                pass
        raise Unavailable(
            f"{HEADER} cannot be honoured at the moment; send the request later, or without it",
            retry_after_s=2,
            code="idempotency_unavailable",
        )

    def _send_soon(self, *parts: str | bytes | int) -> None:
        if self._is_away():
            return
        try:
            call = self._redis.send(encode(*parts))
        except AWAY:
            return
        # Nobody waits for the reply: if the command is lost, the lease ends by itself.
        call.future.add_done_callback(lambda over: over.cancelled() or over.exception())


def _not_kept(reason: str) -> Conflict:
    return Conflict(
        f"the first request with this key was answered and billed, but its answer {reason}",
        param=HEADER,
        code="idempotency_answer_not_kept",
    )


class KeyInUse(Conflict):
    """Clients retry by themselves; by then there is an answer, or the key is free."""

    code = "idempotency_key_in_use"

    def __init__(self) -> None:
        super().__init__("the first request with this key is still under way; wait for its answer", param=HEADER)

    def headers(self) -> dict[str, str]:
        return {"retry-after": "1"}
