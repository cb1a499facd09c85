"""Members that an operator keeps new requests away from, by address, known to every gateway through Redis.

By address, so that a worker which is restarted there stays drained until it is taken back.
"""

import time
from collections.abc import Awaitable, Collection
from typing import Any, cast

from redis.asyncio import Redis

DRAINED_KEY = "tiergate:drained"
"""A Redis hash: address -> when it was drained, in Unix seconds."""
ABSENT_S = 7 * 24 * 3600.0
"""An address where nobody is any more is forgotten, at the next drain, this long after its own."""


class Drained:
    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._since: dict[str, float] = {}

    def has(self, url: str) -> bool:
        return _address(url) in self._since

    async def read(self) -> None:
        """Raises one of `redis_client.AWAY`; what was read last stands then."""
        found = await cast(Awaitable[dict[bytes, bytes]], self._redis.hgetall(DRAINED_KEY))
        self._since = {name.decode(errors="replace"): _seconds(value) for name, value in found.items()}

    async def change(self, url: str, *, is_drained: bool, present: Collection[str]) -> None:
        """present: the addresses of all members there are. Raises one of `redis_client.AWAY`."""
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
