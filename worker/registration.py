"""Tells the gateways, through Redis, that this worker is alive and how busy it is."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from protocol.load import HEARTBEAT_S, WORKERS_KEY, LoadReport, Registration, seal

log = logging.getLogger("tiergate.registration")
_CALL_DEADLINE_S = 2.0


class Heartbeat:
    """While Redis is away the worker keeps serving; its registration comes back with the next beat that arrives."""

    def __init__(self, redis_url: str, *, url: str, worker_key: str, report: Callable[[], LoadReport]) -> None:
        """url: where gateways reach this worker. Raises ValueError for a bad Redis URL."""
        self._client = redis.Redis.from_url(
            redis_url,
            socket_timeout=_CALL_DEADLINE_S,
            socket_connect_timeout=_CALL_DEADLINE_S,
            # The next beat is the retry.
            retry=Retry(NoBackoff(), 0),
        )
        self._url = url
        self._worker_key = worker_key
        self._report = report
        self._is_away = False

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await self._try(self._beat)
            await asyncio.sleep(HEARTBEAT_S)

    async def close(self) -> None:
        """Withdraw the registration, so that no gateway has to find out that the worker is gone."""
        await self._try(self._leave)
        await self._client.aclose()

    async def _beat(self) -> None:
        load = self._report()
        registration = Registration(url=self._url, sent_at_ms=time.time_ns() // 1_000_000, load=load)
        await self._client.hset(WORKERS_KEY, load.worker_id, seal(registration, worker_key=self._worker_key))

    async def _leave(self) -> None:
        await self._client.hdel(WORKERS_KEY, self._report().worker_id)

    async def _try(self, call: Callable[[], Awaitable[None]]) -> None:
        """Log only when Redis goes and when it comes back."""
        try:
            async with asyncio.timeout(_CALL_DEADLINE_S):
                await call()
        except (RedisError, OSError, TimeoutError) as error:
            if not self._is_away:
                log.warning("Redis is away (%s); serving on and trying again", str(error) or type(error).__name__)
            self._is_away = True
        else:
            if self._is_away:
                log.info("Redis is back")
            self._is_away = False
