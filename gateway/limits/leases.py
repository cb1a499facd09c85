"""A gateway's side of the leases: prolong those of its requests, give back what dead gateways held."""

import asyncio
import contextlib
import logging
from typing import Any, cast
from uuid import UUID

from redis.asyncio import Redis

from gateway.clock import utc_now
from gateway.limits.limiter import LEASE_S, Limiter
from gateway.limits.reservation import redis_keys
from gateway.limits.scripts import Script
from gateway.limits.settlements import Settlement
from gateway.redis_client import AWAY

_log = logging.getLogger(__name__)

GATEWAYS_KEY = "tiergate:gateways"
"""A sorted set: incarnation -> last heartbeat (Redis' seconds)."""
RENEW_S = 5.0
SWEEP_EVERY = 12
"""Sweep once in so many renewals."""
ORPHAN_S = 3600.0


class LeaseKeeper:
    def __init__(
        self,
        redis: "Redis",
        limiter: Limiter,
        *,
        incarnation: str,
        deadline_s: float,
        lease_s: float = LEASE_S,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        self._redis = redis
        self._limiter = limiter
        self._incarnation = incarnation
        self._deadline_s = deadline_s
        self._lease_us, self._orphan_us = int(lease_s * 1e6), int(orphan_s * 1e6)
        self._renew = Script(redis, "renew", deadline_s=deadline_s)
        self._sweep = Script(redis, "sweep", deadline_s=deadline_s)

    async def keep_forever(self) -> None:
        rounds = 0
        while True:
            try:
                await self.beat()
                await self.renew()
                if rounds % SWEEP_EVERY == 0:
                    for tenant_id in self._limiter.local.tenants():
                        await self.sweep(tenant_id)
                rounds += 1
            except AWAY as error:
                _log.debug("leases are not prolonged, Redis is away: %r", error)
            await asyncio.sleep(RENEW_S)

    async def beat(self) -> None:
        """Tell that this gateway lives, and learn how many share the limits."""
        async with asyncio.timeout(self._deadline_s):
            seconds, _ = cast(tuple[int, int], await cast(Any, self._redis.time()))
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.zadd(GATEWAYS_KEY, {self._incarnation: seconds})
                pipe.zremrangebyscore(GATEWAYS_KEY, "-inf", seconds - LEASE_S)
                pipe.zcard(GATEWAYS_KEY)
                *_, num_gateways = await pipe.execute()
        self._limiter.local.num_gateways = max(1, num_gateways)

    async def renew(self) -> None:
        for tenant_id, request_ids in self._limiter.local.live_requests().items():
            leases = redis_keys(tenant_id, utc_now())[2]
            await self._renew.call((leases,), self._lease_us, *request_ids)

    async def sweep(self, tenant_id: UUID) -> None:
        """Refund what is held for requests whose gateway died without settling."""
        keys = redis_keys(tenant_id, utc_now())
        found: list[bytes] = await self._sweep.call((keys[2], keys[3]), self._orphan_us)
        for request_id, record in zip(found[::2], found[1::2], strict=True):
            _, _, _, day, month = record.decode().split(" ")
            held_keys = (*keys[:4], day, month)
            self._limiter.settlements.put(Settlement(held_keys, request_id.decode(), 0, 0, "refund"))

    async def leave(self) -> None:
        """Stop counting as a gateway; without Redis the heartbeat's end tells it a little later."""
        with contextlib.suppress(*AWAY):
            async with asyncio.timeout(self._deadline_s):
                await cast(Any, self._redis.zrem(GATEWAYS_KEY, self._incarnation))
