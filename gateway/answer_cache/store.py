"""The store of cached answers: Redis, which may forget any of them. Every failure there counts as a miss.

tiergate:{tenant}:cache:<name>     an answer, sealed, until its TTL ends
tiergate:{tenant}:near:<bucket>    the newest vectors of requests that differ only in their last message, sealed,
                                   each with its answer's name
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from gateway.answer_cache.entry import CachedAnswer, decode_answer, encode_answer
from gateway.idempotency.kept import AnswerSeal, KeptAnswer
from gateway.peppers import Peppers
from gateway.redis_client import AWAY
from gateway.redis_client.connection import ignore_outcome
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import Reply, encode

_log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2**20
NEAREST_OF = 256
"""How many vectors of a bucket are kept and compared."""
_THREAD_BYTES = 64 * 1024
"""Answers larger than this are compressed in a thread."""
_SCAN = 1000
KINDS = ("cache", "near")


class AnswerCache:
    def __init__(self, redis: Pipeline, *, peppers: Peppers, is_away: Callable[[], bool]) -> None:
        self._redis = redis
        self._seal = AnswerSeal(peppers)
        self._is_away = is_away

    async def get(self, tenant: str, name: str) -> CachedAnswer | None:
        key = f"{prefix_of(tenant)}cache:{name}"
        found = await self._ask("GET", key)
        if not isinstance(found, bytes):
            return None
        kept = self._seal.open(found, name=key)
        return None if kept is None else decode_answer(kept.body)

    async def put(self, tenant: str, name: str, answer: CachedAnswer, *, ttl_s: int) -> None:
        """Answers larger than MAX_ANSWER_BYTES are not stored."""
        num_bytes = sum(map(len, answer.parts))
        if num_bytes > MAX_ANSWER_BYTES:
            return
        key, kept = f"{prefix_of(tenant)}cache:{name}", KeptAnswer(200, {}, encode_answer(answer))
        if num_bytes > _THREAD_BYTES:
            sealed = await asyncio.to_thread(self._seal.seal, kept, name=key)
        else:
            sealed = self._seal.seal(kept, name=key)
        await self._ask("SET", key, sealed, "EX", ttl_s)

    def forget_soon(self, tenant: str, name: str) -> None:
        """Forget one answer, without waiting."""
        with suppress(*AWAY):
            call = self._redis.send(encode("UNLINK", f"{prefix_of(tenant)}cache:{name}"))
            call.future.add_done_callback(ignore_outcome)

    async def near(self, tenant: str, bucket: str) -> list[tuple[str, bytes]]:
        """(answer's name, its request's vector) for the bucket's newest."""
        key = f"{prefix_of(tenant)}near:{bucket}"
        found = await self._ask("LRANGE", key, 0, NEAREST_OF - 1)
        sealed = found if isinstance(found, list) else ()
        opened = [self._seal.open(each, name=key) for each in sealed if isinstance(each, bytes)]
        return [(kept.headers["name"], kept.body) for kept in opened if kept is not None]

    async def put_near(self, tenant: str, bucket: str, name: str, vector: bytes, *, ttl_s: int) -> None:
        key = f"{prefix_of(tenant)}near:{bucket}"
        sealed = self._seal.seal(KeptAnswer(200, {"name": name}, vector), name=key)
        await self._ask("LPUSH", key, sealed)
        await self._ask("LTRIM", key, 0, NEAREST_OF - 1)
        await self._ask("EXPIRE", key, ttl_s)

    async def purge(self, tenant: str) -> int:
        """Forget all of the tenant's answers, and return how many. Raises the errors in AWAY."""
        num_answers, cursor = 0, b"0"
        while True:
            found = await self._redis.execute("SCAN", cursor, "MATCH", f"{prefix_of(tenant)}*", "COUNT", _SCAN)
            assert isinstance(found, list) and isinstance(found[0], bytes) and isinstance(found[1], list)
            ours = [key for key in found[1] if isinstance(key, bytes) and _kind(key) in KINDS]
            num_answers += sum(_kind(key) == "cache" for key in ours)
            if ours:
                await self._redis.execute("UNLINK", *ours)
            cursor = found[0]
            if cursor == b"0":
                return num_answers

    async def _ask(self, *parts: str | bytes | int) -> Reply:
        if self._is_away():
            return None
        try:
            return await self._redis.execute(*parts)
        except AWAY as error:
            _log.info("no cached answers at the moment: %r", error)
            return None


def prefix_of(tenant: str) -> str:
    return f"tiergate:{{{tenant}}}:"


def _kind(key: bytes) -> str:
    return key.split(b":", 3)[2].decode()
