"""A gateway's side of the leases: its heartbeat, and giving back what dead gateways, or lost commands of its own, left
held in Redis."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import cast
from uuid import UUID

from gateway.limits.commands import held_key, release
from gateway.limits.limiter import Limiter
from gateway.limits.presence import KEEP_SWEPT_S
from gateway.limits.unsettled import CameTo, read_unsettled
from gateway.redis_client import AWAY
from gateway.redis_client.resp import encode

_log = logging.getLogger(__name__)

BEATS_A_LEASE = 3
TIDY_EVERY = 12
"""How many heartbeats there are between two searches for leftovers."""
BATCH = 500
TENANTS_AT_ONCE = 50
"""How many tenants are asked about together. Requests wait behind these questions."""


class LeaseKeeper:
    def __init__(self, limiter: Limiter, *, data_dir: Path) -> None:
        self._limiter = limiter
        self._data_dir = data_dir
        self._presence = limiter.presence
        self._redis = limiter.redis
        self._dead: tuple[str, ...] = ()
        """The gateways that were dead at the last heartbeat."""

    async def keep_forever(self) -> None:
        """Heartbeats have a task of their own: with many tenants the rest takes longer than a lease."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.beat))
            group.create_task(self._repeat(self.sweep_dead, self.settle_adopted))
            group.create_task(self._repeat(self.tidy, every=TIDY_EVERY))

    async def _repeat(self, *steps: Callable[[], Awaitable[None]], every: int = 1) -> None:
        """every: in heartbeats."""
        for beats in itertools.count(1):
            if not self._limiter.is_local and beats % every == 0:
                try:
                    for step in steps:
                        await step()
                except AWAY as error:
                    _log.debug("Redis was not told: %r", error)
            await asyncio.sleep(self._presence.lease_s / BEATS_A_LEASE)

    async def beat(self) -> None:
        """Send the heartbeat, and learn how many gateways share the limits, and which are dead."""
        beat = await self._presence.beat()
        self._limiter.local.num_gateways = max(1, beat.num_alive)
        await self._limiter.check_memory()
        if not beat.was_alive:
            self._limiter.tell_anew()
        self._dead = beat.dead if self._presence.can_judge else ()

    async def sweep_dead(self) -> None:
        for incarnation in self._dead:
            # It may have come back while others were swept.
            if incarnation in self._dead:
                await self.sweep(incarnation)

    async def sweep(self, incarnation: str) -> None:
        """Free the concurrency that a dead gateway held. Its reservations of day and month stay counted until the
        actual figures of its requests are known."""
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

    async def settle_adopted(self) -> None:
        """Replace reservations of dead gateways by their requests' actual figures, taken from their outboxes. A request
        that left no event there, because it had only just begun, is never billed, and its reservation is given back."""
        for path, unsettled in await asyncio.to_thread(lambda: list(read_unsettled(self._data_dir))):
            by_tenant: dict[str, dict[str, CameTo]] = {
                tenant_id: {} for tenant_id in await self._presence.tenants_of(unsettled.incarnation)
            }
            for request in unsettled.requests:
                by_tenant.setdefault(request.tenant_id, {})[request.request_id] = request
            for tenant_id, requests in by_tenant.items():
                await self._settle(tenant_id, unsettled.incarnation, requests)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _settle(self, tenant_id: str, incarnation: str, requests: Mapping[str, CameTo]) -> None:
        """requests: all of a dead gateway's requests for the tenant that left an event, by id."""
        held = await self._held(tenant_id, incarnation)
        reserved = {request_id: record for request_id, record in held.items() if " " in record}
        if not reserved.keys() <= requests.keys():
            # An event may also be missing because it was shipped while Redis was away, and then it is in the ledger.
            self._limiter.floor.doubt()

        def closed(request_id: str, record: str) -> bytes:
            came_to = requests.get(request_id)
            if came_to is None or came_to.is_refund:
                return release(tenant_id, incarnation, request_id, record, "refund")
            return release(
                tenant_id,
                incarnation,
                request_id,
                record,
                "actual",
                tokens=came_to.tokens,
                cost_nanousd=came_to.cost_nanousd,
            )

        await self._send(tenant_id, (closed(request_id, record) for request_id, record in reserved.items()))

    async def tidy(self) -> None:
        """Give back requests that this gateway holds in Redis but does not know: commands were lost or reordered."""
        tenants = iter([str(tenant_id) for tenant_id in self._limiter.local.tenants()])
        while batch := list(itertools.islice(tenants, TENANTS_AT_ONCE)):
            await asyncio.gather(*(self._tidy(tenant_id) for tenant_id in batch))

    async def _tidy(self, tenant_id: str) -> None:
        incarnation = self._presence.incarnation
        held = await self._held(tenant_id, incarnation)
        if any(record.startswith("swept") for id, record in held.items() if id in self._limiter.local.live):
            self._limiter.tell_anew()
        forgotten = self._limiter.without_known(held)
        if any(record != "done" for record in forgotten.values()):
            # An older state of Redis holds requests as running that have ended and are billed.
            self._limiter.floor.doubt()
        await self._send(
            tenant_id,
            (release(tenant_id, incarnation, request_id, record, "refund") for request_id, record in forgotten.items()),
        )

    async def leave(self) -> None:
        """Stop counting as a gateway, unless requests are still held; other gateways sweep those after the lease."""
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
