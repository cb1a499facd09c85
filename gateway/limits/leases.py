"""A gateway's side of the leases: its one heartbeat, what dead gateways held, and what was left behind of its own."""

import asyncio
import itertools
import logging
from collections.abc import Iterable
from typing import cast
from uuid import UUID

from gateway.limits.commands import held_key, release
from gateway.limits.limiter import Limiter
from gateway.redis_client import AWAY
from gateway.redis_client.resp import encode

_log = logging.getLogger(__name__)

BEATS_A_LEASE = 3
TIDY_EVERY = 12
"""Look for what was left behind once in so many heartbeats."""
BATCH = 500
KEEP_SWEPT_S = 86_400
"""A gateway that was only paused settles what it had under way; its records wait this long for it."""


class LeaseKeeper:
    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._presence = limiter.presence
        self._redis = limiter.redis

    async def keep_forever(self) -> None:
        for beats in itertools.count(1):
            if not self._limiter.is_local:
                try:
                    await self.beat()
                    if beats % TIDY_EVERY == 0:
                        await self.tidy()
                except AWAY as error:
                    _log.debug("the heartbeat did not arrive: %r", error)
            await asyncio.sleep(self._presence.lease_s / BEATS_A_LEASE)

    async def beat(self) -> None:
        """Tell that this gateway lives, learn how many share the limits, and give back what dead ones held."""
        beat = await self._presence.beat()
        self._limiter.local.num_gateways = max(1, beat.num_alive)
        if not beat.was_alive:
            self._limiter.tell_anew()
        if self._presence.can_judge:
            for incarnation in beat.dead:
                await self.sweep(incarnation)

    async def sweep(self, incarnation: str) -> None:
        """Give back what a dead gateway held: places, and what it reserved of days and months."""
        for tenant_id in await self._presence.tenants_of(incarnation):
            held = await self._held(tenant_id, incarnation)
            live = [(request_id, record) for request_id, record in held.items() if record.startswith("live")]
            await self._send(
                tenant_id,
                (release(tenant_id, incarnation, request_id, record, "sweep") for request_id, record in live),
            )
            await self._send(tenant_id, [encode("EXPIRE", held_key(tenant_id, incarnation), KEEP_SWEPT_S)])
            if live:
                _log.warning("gave back what a dead gateway held of %s: %d requests", tenant_id, len(live))
        await self._presence.bury(incarnation)

    async def tidy(self) -> None:
        """Give back what this gateway holds in Redis and knows nothing of: commands were lost, or came out of order."""
        incarnation = self._presence.incarnation
        for tenant_id in map(str, self._limiter.local.tenants()):
            held = await self._held(tenant_id, incarnation)
            if any(record.startswith("swept") for id, record in held.items() if id in self._limiter.local.live):
                self._limiter.tell_anew()
            known = self._limiter.local.live.keys() | self._limiter.settlements.request_ids()
            forgotten = [(request_id, record) for request_id, record in held.items() if request_id not in known]
            await self._send(
                tenant_id,
                (release(tenant_id, incarnation, request_id, record, "refund") for request_id, record in forgotten),
            )

    async def leave(self) -> None:
        """Stop counting as a gateway, unless something is still held: then the others find it after the lease."""
        if not self._limiter.local.live and not len(self._limiter.settlements):
            await self._presence.leave()

    async def _held(self, tenant_id: str, incarnation: str) -> dict[str, str]:
        """Request id -> record."""
        reply = await self._redis.send(
            encode("HGETALL", held_key(tenant_id, incarnation)), order=_order(tenant_id)
        ).future
        flat = [part.decode() for part in cast(list[bytes], reply)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def _send(self, tenant_id: str, commands: Iterable[bytes]) -> None:
        rest = iter(commands)
        while batch := list(itertools.islice(rest, BATCH)):
            await asyncio.gather(*(self._redis.send(command, order=_order(tenant_id)).future for command in batch))


def _order(tenant_id: str) -> int:
    return UUID(tenant_id).int & 0xFF
