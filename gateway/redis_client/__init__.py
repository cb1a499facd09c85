"""Connections to Redis (or Valkey): a pipeline for the hot path (`pipeline`), redis-py for everything else."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

AWAY = (RedisError, OSError, TimeoutError)
"""The exceptions that a call raises when Redis is away or slow."""
MAX_CONNECTIONS = 16


def connect_redis(url: str, *, deadline_s: float) -> "Redis":
    """A client that gives up on connecting and on each answer after `deadline_s`. Close it with `aclose`.

    Its deadline also runs while our own event loop is slow, so it is for loops and not for requests.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=deadline_s,
        socket_timeout=deadline_s,
        socket_connect_timeout=deadline_s,
        # One retry, for a connection that the server closed while it was idle.
        retry=Retry(NoBackoff(), 1),
    )
    return Redis.from_pool(pool)
