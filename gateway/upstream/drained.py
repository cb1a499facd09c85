"""Members that an operator has drained of new requests, by address, shared by all gateways through Redis.

By address, so that a worker which is restarted there stays drained until the operator ends the drain.
"""

import time
from collections.abc import Awaitable, Collection
from typing import Any, cast

from redis.asyncio import Redis

DRAINED_KEY = "tiergate:drained"
"""A Redis hash: address -> when it was drained, in Unix seconds."""
ABSENT_S = 7 * 24 * 3600.0
"""An address without a member is forgotten this long after it was drained, when the next address is drained."""


class Drained:
    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._since: dict[str, float] = {}
        self._num_begun = self._num_last = 0
        """Readings begun, and the number of the one that `_since` is from."""

    def has(self, url: str) -> bool:
        return _address(url) in self._since

    async def read(self) -> None:
        """Raises one of `redis_client.AWAY`, and then keeps the last state read."""
        self._num_begun += 1
        number = self._num_begun
        found = await cast(Awaitable[dict[bytes, bytes]], self._redis.hgetall(DRAINED_KEY))
        if number < self._num_last:
            # It may not know of the drain that the later reading saw.
            return
        self._num_last = number
        self._since = {name.decode(errors="replace"): _seconds(value) for name, value in found.items()}

    async def change(self, url: str, *, is_drained: bool, present: Collection[str]) -> None:
        """present: the addresses of all current members. Raises one of `redis_client.AWAY`."""
        address, now = _address(url), time.time()
        redis: Any = self._redis
        if not is_drained:
            await redis.hdel(DRAINED_KEY, address)
        elif address not in self._since:
            await redis.hset(DRAINED_KEY, address, str(int(now)))
            there = {_address(each) for each in present}
            gone = [each for each, since in self._since.items() if each not in there and now - since > ABSENT_S]
            if gone:
                await redis.hdel(DRAINED_KEY, *gone)
        await self.read()


def _address(url: str) -> str:
    return url.rstrip("/")


def _seconds(value: bytes) -> float:
    return float(value) if value.isdigit() else 0.0
