"""This gateway's presence among the others: one heartbeat per incarnation, and the tenants that it serves.

There are two kinds of keys beside the tenants' own: the heartbeats of all gateways, and for each incarnation the
tenants for which it may hold requests, so that a gateway that finds it dead knows where to look.
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
KEEP_SWEPT_S = 86_400
"""How long the records of a swept gateway are kept: its outbox may be adopted later, and one that was only paused still
settles its requests under way."""
BEATS_KEY = "tiergate:{gateways}:beats"
GENERATION_KEY = "tiergate:{gateways}:generation"
"""The key of a random value, which changes whenever Redis has lost its data."""


def tenants_key(incarnation: str) -> str:
    return f"tiergate:{{gateways}}:tenants:{incarnation}"


@dataclass(frozen=True, slots=True)
class Beat:
    num_alive: int
    was_alive: bool
    """False: others may have taken this gateway for dead and given back the requests that it holds."""
    dead: tuple[str, ...]


class Presence:
    """Methods raise one of AWAY."""

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
        """Whether dead gateways can be told from live ones. After an outage all others look dead until they have had
        the length of a lease to send a heartbeat."""
        return self._clock() - self._steady_since >= self.lease_s

    async def beat(self) -> Beat:
        answer = await self._redis.execute("EVALSHA", BEAT, 1, BEATS_KEY, self.incarnation, self._lease_us)
        num_alive, was_alive, *dead = cast(list[int | bytes], answer)
        self._redis.share_with(cast(int, num_alive))
        if not was_alive:
            # Others may have buried this gateway.
            await self._redis.execute("PERSIST", tenants_key(self.incarnation))
        now = self._clock()
        if now - self._beaten_at >= self.lease_s:
            self._steady_since = now
        self._beaten_at = now
        names = tuple(name.decode() for name in dead if isinstance(name, bytes))
        return Beat(cast(int, num_alive), bool(was_alive), names)

    async def generation(self) -> bytes:
        """A value that changes when Redis has lost its data."""
        await self._redis.execute("SET", GENERATION_KEY, uuid4().hex, "NX")
        return cast(bytes, await self._redis.execute("GET", GENERATION_KEY))

    def registration_of(self, tenant_id: UUID) -> bytes:
        """The command that must precede the first other command for a tenant."""
        return encode("SADD", tenants_key(self.incarnation), str(tenant_id))

    async def tenants_of(self, incarnation: str) -> list[str]:
        found = cast(list[bytes], await self._redis.execute("SMEMBERS", tenants_key(incarnation)))
        return [name.decode() for name in found]

    async def bury(self, incarnation: str) -> None:
        """Stop counting a dead gateway, unless it has come back meanwhile."""
        keys = (BEATS_KEY, tenants_key(incarnation))
        await self._redis.execute("EVALSHA", BURY, len(keys), *keys, incarnation, self._lease_us, KEEP_SWEPT_S)

    async def leave(self) -> None:
        keys = (BEATS_KEY, tenants_key(self.incarnation))
        await self._redis.execute("EVALSHA", BURY, len(keys), *keys, self.incarnation, -1_000_000, 0)
