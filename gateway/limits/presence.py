"""This gateway among the others: one heartbeat an incarnation, and the tenants that it serves.

Two keys beside the tenants' own: who lives, and for each incarnation the tenants at which it may hold something, so
that whoever finds it dead knows where to look.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from uuid import UUID, uuid4

from gateway.limits.scripts import BEAT, BURY
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import encode

LEASE_S = 15.0
BEATS_KEY = "tiergate:{gateways}:beats"
GENERATION_KEY = "tiergate:{gateways}:generation"
"""A random value that is there exactly as long as Redis remembers."""


def tenants_key(incarnation: str) -> str:
    return f"tiergate:{{gateways}}:tenants:{incarnation}"


@dataclass(frozen=True, slots=True)
class Beat:
    num_alive: int
    was_alive: bool
    """False: others may have taken this gateway for dead and given back what it holds."""
    dead: tuple[str, ...]


class Presence:
    """Methods raise what AWAY names."""

    def __init__(
        self, redis: Pipeline, *, incarnation: str, lease_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._clock = clock
        self.incarnation = incarnation
        self.lease_s = lease_s
        self._lease_us = int(lease_s * 1e6)
        self._beaten_at = self._steady_since = float("-inf")

    @property
    def can_judge(self) -> bool:
        """After an outage all others look dead, until they had a lease's time to show themselves."""
        return self._clock() - self._steady_since >= self.lease_s

    async def beat(self) -> Beat:
        answer = await self._redis.execute("EVALSHA", BEAT, 1, BEATS_KEY, self.incarnation, self._lease_us)
        num_alive, was_alive, *dead = cast(list[int | bytes], answer)
        self._redis.share_with(cast(int, num_alive))
        now = self._clock()
        if now - self._beaten_at >= self.lease_s:
            self._steady_since = now
        self._beaten_at = now
        names = tuple(name.decode() for name in dead if isinstance(name, bytes))
        return Beat(cast(int, num_alive), bool(was_alive), names)

    async def generation(self) -> bytes:
        """Changes when Redis has lost its memory."""
        await self._redis.execute("SET", GENERATION_KEY, uuid4().hex, "NX")
        return cast(bytes, await self._redis.execute("GET", GENERATION_KEY))

    def registration_of(self, tenant_id: UUID) -> bytes:
        """The command that must precede the first one for a tenant."""
        return encode("SADD", tenants_key(self.incarnation), str(tenant_id))

    async def tenants_of(self, incarnation: str) -> list[str]:
        found = cast(list[bytes], await self._redis.execute("SMEMBERS", tenants_key(incarnation)))
        return [name.decode() for name in found]

    async def bury(self, incarnation: str) -> None:
        """Forget a dead gateway, unless it has come back meanwhile."""
        keys = (BEATS_KEY, tenants_key(incarnation))
        await self._redis.execute("EVALSHA", BURY, len(keys), *keys, incarnation, self._lease_us)

    async def leave(self) -> None:
        keys = (BEATS_KEY, tenants_key(self.incarnation))
        await self._redis.execute("EVALSHA", BURY, len(keys), *keys, self.incarnation, -1_000_000)
