"""Who is alive: one loop draws the router's Fleet from Redis, from the catalog and from the configured members."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from gateway.clock import utc_now
from gateway.domain.catalog import CatalogCache
from gateway.domain.prices.price_book import UNPRICED_VERSION
from gateway.redis_client import AWAY
from gateway.settings import GatewaySettings
from gateway.upstream.configured_members import FixedMembers
from gateway.upstream.traffic import Traffic
from protocol.load import HEARTBEAT_S, STALE_AFTER_S, WORKERS_KEY, BadSignature, Registration, unseal
from router.fleet import Fleet, Member, Pool

_log = logging.getLogger(__name__)

READ_DEADLINE_S = 1.0
"""A loop can wait longer for Redis than a request: it also runs while our own event loop is slow."""
SHUN_S = 2.0
"""How long a replica that failed a request is taken for unhealthy, unless it was merely full."""


@dataclass(slots=True)
class _Sighting:
    registration: Registration
    changed_at: float
    """Our own monotonic clock, so that skewed clocks do not make a live worker stale."""


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
        self._worker_key = settings.worker_key.get_secret_value() if settings.worker_key else None
        self._sightings: dict[str, _Sighting] = {}
        self._shunned_until: dict[str, float] = {}
        self._failed_at = float("-inf")
        self._traffic = Traffic()
        self.fleet = Fleet(pools={})

    async def refresh_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(HEARTBEAT_S)

    async def refresh(self) -> None:
        """Read the registrations and draw the fleet anew; while Redis is away the last ones stand."""
        now = time.monotonic()
        if self._worker_key is not None:
            try:
                async with asyncio.timeout(READ_DEADLINE_S):
                    sealed = await cast(Awaitable[dict[bytes, bytes]], self._redis.hgetall(WORKERS_KEY))
                self._note(sealed, now)
            except AWAY as error:
                self._keep(now, error)
        self.redraw()

    def redraw(self) -> None:
        now = time.monotonic()
        self.fleet = Fleet(pools=_draw(self._catalog, self._traffic.attach(self._members(now), now)))

    def note_failure(self, worker_id: str) -> None:
        """A request failed there: other requests go elsewhere for a moment."""
        now = time.monotonic()
        self._shunned_until = {each: until for each, until in self._shunned_until.items() if until > now}
        self._shunned_until[worker_id] = now + SHUN_S
        self.redraw()

    def registrations(self) -> list[Registration]:
        return [sighting.registration for sighting in self._sightings.values()]

    def _note(self, sealed: dict[bytes, bytes], now: float) -> None:
        assert self._worker_key is not None
        for name, value in sealed.items():
            try:
                registration = unseal(value, worker_key=self._worker_key)
            except (BadSignature, msgspec.MsgspecError) as error:
                _log.warning("the registration of %r is not taken: %s", name.decode(errors="replace"), error)
                continue
            self._see(registration, now)
        # Right after an outage Redis may be empty: the workers get the time to register again.
        is_settled = now - self._failed_at > STALE_AFTER_S
        present = {name.decode(errors="replace") for name in sealed}
        for worker_id, sighting in list(self._sightings.items()):
            is_stale = now - sighting.changed_at > STALE_AFTER_S
            if is_stale or (is_settled and worker_id not in present):
                del self._sightings[worker_id]

    def _see(self, registration: Registration, now: float) -> None:
        worker_id = registration.load.worker_id
        known = self._sightings.get(worker_id)
        if known is None:
            # The first sight may be of a worker long dead; a live one shows itself with its next heartbeat.
            if time.time() - registration.sent_at_ms / 1000 < STALE_AFTER_S:
                self._sightings[worker_id] = _Sighting(registration, now)
        elif registration.sent_at_ms != known.registration.sent_at_ms:
            self._sightings[worker_id] = _Sighting(registration, now)

    def _keep(self, now: float, error: BaseException) -> None:
        if now - self._failed_at > STALE_AFTER_S:
            _log.warning("Redis is away, the last picture of the fleet stands: %r", error)
        self._failed_at = now
        for sighting in self._sightings.values():
            sighting.changed_at = now

    def _members(self, now: float) -> list[tuple[str, Member]]:
        """(pool, member) of everybody known; whoever failed lately is marked."""
        registered = [
            (load.pool or _pool_of_model(self._catalog, load.model), _registered_member(sighting.registration))
            for sighting in self._sightings.values()
            for load in (sighting.registration.load,)
        ]
        return [
            (pool, _mark(member, is_healthy=member.is_healthy and now >= self._shunned_until.get(member.worker_id, 0)))
            for pool, member in [*registered, *self._fixed.members()]
        ]


def _registered_member(registration: Registration) -> Member:
    load = registration.load
    return Member(worker_id=load.worker_id, url=registration.url.rstrip("/"), model_name=load.model, load=load)


def _mark(member: Member, *, is_healthy: bool) -> Member:
    return member if member.is_healthy == is_healthy else msgspec.structs.replace(member, is_healthy=is_healthy)


def _pool_of_model(catalog: CatalogCache, model_id: str) -> str:
    model = catalog.current.models.get(model_id)
    return model.pool if model else model_id


def _draw(catalog: CatalogCache, members: Iterable[tuple[str, Member]]) -> dict[str, Pool]:
    """Declared pools, empty ones too, and those that only registered workers name."""
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
        )
    return pools


def _prices(catalog: CatalogCache, model_id: str) -> tuple[int, int, int] | None:
    terms = catalog.current.prices.price_of(model_id, now=utc_now())
    if terms.version == UNPRICED_VERSION:
        return None
    return terms.prompt_nanousd, terms.cached_prompt_nanousd, terms.completion_nanousd
