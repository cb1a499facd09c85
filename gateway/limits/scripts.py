"""The Lua scripts over one Redis client whose every call has a deadline."""

import asyncio
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

AWAY = (RedisError, OSError, TimeoutError)
"""What a call raises when Redis is away or slow."""
MAX_CONNECTIONS = 128


def connect_redis(url: str, *, deadline_s: float) -> "Redis":
    """A client that gives up on connecting and on each answer after `deadline_s`. Close it with `aclose`."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=deadline_s,
        socket_timeout=deadline_s,
        socket_connect_timeout=deadline_s,
        # One retry, for a connection that the server closed while it was idle: our scripts are idempotent.
        retry=Retry(NoBackoff(), 1),
    )
    return Redis.from_pool(pool)


class Script:
    """One Lua file of this folder; `call` raises one of AWAY."""

    def __init__(self, redis: "Redis", name: str, *, deadline_s: float) -> None:
        source = files(__package__).joinpath(f"{name}.lua").read_text()
        self._script = redis.register_script(source)
        self._deadline_s = deadline_s

    async def call(self, keys: tuple[str, ...], *arguments: str | int) -> Any:
        async with asyncio.timeout(self._deadline_s):
            return await cast(Awaitable[Any], self._script(keys=list(keys), args=list(arguments)))
