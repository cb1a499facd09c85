"""Which members are alive: one loop builds the router's Fleet from Redis, the catalog and the configured members."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from gateway.clock import utc_now
from gateway.domain.catalog import CatalogCache
from gateway.domain.prices.price_book import UNPRICED_VERSION
from gateway.redis_client import AWAY
from gateway.settings import GatewaySettings
from gateway.upstream.configured_members import FixedMembers
from gateway.upstream.drained import Drained
from gateway.upstream.health import WELL, Health
from gateway.upstream.retry_budget import RetryBudget
from gateway.upstream.sightings import Sightings
from gateway.upstream.told_loads import ToldLoads
from gateway.upstream.traffic import Traffic
from protocol.load import HEARTBEAT_S, STALE_AFTER_S, WORKERS_KEY, Registration
from router.fleet import Fleet, Member, Pool

_log = logging.getLogger(__name__)

READ_DEADLINE_S = 1.0
"""Longer than a request may wait for Redis: this loop can afford it, and also runs while our own event loop is slow."""
MAX_GONE = 1000
"""How many ids of members that are gone may be remembered."""


class Registry:
    def __init__(
        self,
        redis: "Redis",
        catalog: CatalogCache,
        fixed: FixedMembers,
        settings: GatewaySettings,
    ) -> None:
        self._redis = redis
        self._catalog = catalog
        self._fixed = fixed
        self._sightings = Sightings(settings.worker_keys) if settings.worker_keys else None
        self._failed_at = float("-inf")
        self._started_at = time.monotonic()
        self._known: set[str] = set()
        self._traffic = Traffic()
        self._budgets: dict[str, RetryBudget] = {}
        self.drained = Drained(redis)
        self.told_loads = ToldLoads()
        self.health = Health()
        self._overflow_pools = settings.overflow_pools
        self.fleet = Fleet(pools={})

    async def refresh_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(HEARTBEAT_S)

    async def refresh(self) -> None:
        """Read the registrations and rebuild the fleet. While Redis is away, the last registrations stand."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                await self.drained.read()
            if self._sightings is not None:
                async with asyncio.timeout(READ_DEADLINE_S):
                    sealed = await cast(Awaitable[dict[bytes, bytes]], self._redis.hgetall(WORKERS_KEY))
                self._sightings.note(sealed, now, is_settled=now - self._failed_at > STALE_AFTER_S)
                await self._remove_long_dead(self._sightings)
        except AWAY as error:
            self._keep(now, error)
        self.redraw()
        for pool in self.fleet.pools.values():
            if self.health.judge_pool(pool.members, now):
                self.redraw()

    async def _remove_long_dead(self, sightings: Sightings) -> None:
        """Remove the registrations of dead workers: every killed worker leaves one, and every gateway reads all of them
        twice a second."""
        if names := sightings.take_long_dead(time.monotonic()):
            async with asyncio.timeout(READ_DEADLINE_S):
                await self._redis.hdel(WORKERS_KEY, *names)

    def redraw(self) -> None:
        now = time.monotonic()
        members = self._traffic.attach(self._members(now), now)
        self.fleet = Fleet(pools=_draw(self._catalog, self._overflow_pools, members))

    def find(self, worker_id: str) -> tuple[Pool, Member] | None:
        """None if no member has that id."""
        pools = self.fleet.pools.values()
        found = ((pool, member) for pool in pools for member in pool.members if member.worker_id == worker_id)
        return next(found, None)

    async def drain(self, member: Member, *, is_drained: bool) -> None:
        """Keep new requests away from the member, at every gateway within a heartbeat; or end the drain.

        Raises one of `redis_client.AWAY`.
        """
        present = [each.url for pool in self.fleet.pools.values() for each in pool.members]
        async with asyncio.timeout(READ_DEADLINE_S):
            await self.drained.change(member.url, is_drained=is_drained, present=present)
        self.redraw()

    def note_failure(self, worker_id: str, *, is_fatal: bool) -> None:
        """A request to the member failed. If its breaker opens, other requests avoid it for a while."""
        if self.health.note_failure(worker_id, time.monotonic(), is_fatal=is_fatal):
            self.redraw()

    def note_success(self, worker_id: str) -> None:
        self.health.note_success(worker_id, time.monotonic())

    def note_load(self, worker_id: str, header: bytes) -> None:
        """Note the load that one of our workers reported in a header of its answer."""
        self.told_loads.note(worker_id, header)
        self._traffic.note_told(worker_id, time.monotonic())

    def note_probe(self, worker_id: str, *, is_ready: bool) -> None:
        if self.health.note_probe(worker_id, time.monotonic(), is_ready=is_ready):
            self.redraw()

    def retry_budget(self, pool: str) -> RetryBudget:
        budget = self._budgets.get(pool)
        if budget is None:
            budget = self._budgets[pool] = RetryBudget(time.monotonic())
        return budget

    def registrations(self) -> list[Registration]:
        return self._sightings.registrations() if self._sightings is not None else []

    def _keep(self, now: float, error: BaseException) -> None:
        if now - self._failed_at > STALE_AFTER_S:
            _log.warning("Redis is away, the last picture of the fleet stands: %r", error)
        self._failed_at = now
        if self._sightings is not None:
            self._sightings.keep(now)

    def _members(self, now: float) -> list[tuple[str, Member]]:
        """(pool name, member) for every known member, one per worker id, marked with its health and drain state."""
        registered = [
            (load.pool or _pool_of_model(self._catalog, load.model), _registered_member(registration))
            for registration in self.registrations()
            for load in (registration.load,)
        ]
        found: dict[str, tuple[str, Member]] = {}
        for pool, member in [*registered, *self._fixed.members()]:
            found.setdefault(member.worker_id, (pool, member))
        self._note_new(found, now)
        self.health.forget_all_but(found.keys())
        self.told_loads.forget_all_but(found.keys())
        return [(pool, self._judged(self.told_loads.freshen(member), now)) for pool, member in found.values()]

    def _judged(self, member: Member, now: float) -> Member:
        if self.drained.has(member.url):
            member = msgspec.structs.replace(member, is_drained=True)
        verdict = self.health.verdict(member.worker_id, now, is_probed=member.engine == "tiergate")
        if verdict == WELL:
            return member
        return msgspec.structs.replace(
            member,
            is_healthy=member.is_healthy and verdict.is_healthy,
            is_on_trial=verdict.is_on_trial,
            weight=verdict.weight,
        )

    def _note_new(self, found: Mapping[str, tuple[str, Member]], now: float) -> None:
        """Members that appear after our own start get a slow start. A configured server that is down counts as not
        there yet."""
        present = {worker_id for worker_id, (_, member) in found.items() if member.is_healthy}
        if now - self._started_at > STALE_AFTER_S:
            for worker_id in present - self._known:
                self.health.note_new(worker_id, now)
        self._known |= present
        if len(self._known) > 2 * len(found) + MAX_GONE:
            self._known &= present


def _registered_member(registration: Registration) -> Member:
    load = registration.load
    return Member(worker_id=load.worker_id, url=registration.url.rstrip("/"), model_name=load.model, load=load)


def _pool_of_model(catalog: CatalogCache, model_id: str) -> str:
    model = catalog.current.models.get(model_id)
    return model.pool if model else model_id


def _draw(
    catalog: CatalogCache, overflow_pools: Mapping[str, str], members: Iterable[tuple[str, Member]]
) -> dict[str, Pool]:
    """All declared pools, including empty ones, and the pools that only registered workers name."""
    by_pool: dict[str, list[Member]] = {model.pool: [] for model in catalog.current.models.values()}
    for pool, member in members:
        by_pool.setdefault(pool, []).append(member)
    declared: dict[str, Any] = {model.pool: model for model in catalog.current.models.values()}
    pools = {}
    for name, found in by_pool.items():
        loads = [member.load for member in found if member.load is not None]
        model = declared.get(name)
        windows = [load.max_model_len for load in loads] + ([model.context_window] if model else [])
        pools[name] = Pool(
            name=name,
            model_id=model.id if model else found[0].model_name,
            context_window=min(windows, default=0),
            kind=model.kind if model else "chat",
            members=tuple(found),
            adapters=frozenset(adapter for load in loads for adapter in load.adapters),
            prices=_prices(catalog, model.id) if model else None,
            overflow_of=overflow_pools.get(name),
        )
    return pools


def _prices(catalog: CatalogCache, model_id: str) -> tuple[int, int, int, int] | None:
    terms = catalog.current.prices.price_of(model_id, now=utc_now())
    if terms.version == UNPRICED_VERSION:
        return None
    return terms.prompt_nanousd, terms.cached_prompt_nanousd, terms.completion_nanousd, terms.minimum_nanousd
