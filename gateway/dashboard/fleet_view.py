"""Pools and replicas as this gateway process sees them right now, in the words that the fleet page shows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.catalog import Catalog
from gateway.services import Services
from router.fleet import Member, Pool
from router.saturation import PoolState

MAX_REPLICAS = 100
"""Replicas shown over all pools. A page of thousands would be of no use; the API lists all."""
MIN_REPLICAS = 10
"""Replicas shown of each pool, however many pools there are."""


@dataclass(frozen=True)
class ReplicaView:
    worker_id: str
    url: str
    engine: str
    state: str
    kind: str
    """`good`, `warn` or `bad`: its colour."""
    is_drained: bool
    running: str
    waiting: str
    kv_percent: int | None
    """The share of the KV cache's blocks that is taken; None if the replica does not report it."""
    first_token_ms: float | None
    own: int
    """Requests of this gateway process that are under way there."""
    resident: list[str]
    num_served: int | None
    """How many adapters the replica serves. None: any, or it sends no load report."""
    report_age_s: float | None


@dataclass(frozen=True)
class PoolView:
    name: str
    model_id: str
    kind: str
    overflow_of: str | None
    standing: str
    standing_kind: str
    num_usable: int
    num_members: int
    num_running: int
    num_waiting: int
    replicas: list[ReplicaView]


def view_fleet(services: Services) -> list[PoolView]:
    pools = services.registry.fleet.pools.values()
    names = adapter_names(services.catalog.current)
    num_shown = max(MIN_REPLICAS, MAX_REPLICAS // max(1, len(pools)))
    by_name = sorted(pools, key=lambda each: each.name)
    return [_view_pool(services, pool, names, num_shown=num_shown) for pool in by_name]


def adapter_names(catalog: Catalog) -> Mapping[tuple[str, str], str]:
    """(model, adapter's name at its workers) -> the adapter's name for tenants."""
    found: dict[tuple[str, str], str] = {}
    for adapter in catalog.adapters.values():
        for model_id, worker_name in adapter.variants.items():
            found.setdefault((model_id, worker_name), adapter.name)
    return found


def _view_pool(services: Services, pool: Pool, names: Mapping[tuple[str, str], str], *, num_shown: int) -> PoolView:
    standing, kind = _standing(pool, services.gates.states.get(pool.name, PoolState()))
    return PoolView(
        name=pool.name,
        model_id=pool.model_id,
        kind=pool.kind,
        overflow_of=pool.overflow_of,
        standing=standing,
        standing_kind=kind,
        num_usable=len(pool.replicas.usable),
        num_members=len(pool.members),
        num_running=sum(_running(member) for member in pool.members),
        num_waiting=sum(_waiting(member) for member in pool.members),
        replicas=[_view_replica(services, pool, each, names) for each in pool.members[:num_shown]],
    )


def _standing(pool: Pool, state: PoolState) -> tuple[str, str]:
    if not pool.replicas.usable:
        return ("unavailable" if pool.members else "no replicas"), "bad"
    if state.is_saturated:
        return "saturated", "bad"
    if state.is_shedding:
        return "shedding best effort", "warn"
    return "open", "good"


def _view_replica(services: Services, pool: Pool, member: Member, names: Mapping[tuple[str, str], str]) -> ReplicaView:
    load = member.load
    state, kind = _state(member, services.registry.health.state(member.worker_id, time.monotonic()))
    resident = () if load is None else load.adapters if load.resident_adapters is None else load.resident_adapters
    return ReplicaView(
        worker_id=member.worker_id,
        url=member.url,
        engine=member.engine,
        state=state,
        kind=kind,
        is_drained=member.is_drained,
        running=f"{_running(member)}" if load is None else f"{_running(member)} of {load.max_num_seqs}",
        waiting=f"{_waiting(member)}",
        kv_percent=_kv_percent(member),
        first_token_ms=member.recent_ttft_ms,
        own=member.in_flight.num_requests,
        resident=sorted({names.get((pool.model_id, name), name) for name in resident}),
        num_served=None if load is None or load.fetches_adapters else len(load.adapters),
        report_age_s=None if load is None else member.age_s,
    )


def _state(member: Member, breaker: str) -> tuple[str, str]:
    """breaker: a state of the circuit breaker (docs/members.md)."""
    if member.is_drained:
        left = _running(member) + _waiting(member)
        return (f"draining, {left} left" if left else "drained"), "warn"
    if member.load is not None and member.load.is_draining:
        return "shutting down", "warn"
    if breaker == "closed":
        return ("well", "good") if member.is_healthy else ("does not answer", "bad")
    return {"open": ("failed, left alone", "bad"), "half-open": ("failed, being tried", "bad")}.get(
        breaker, ("starting slowly", "warn")
    )


def _running(member: Member) -> int:
    return member.in_flight.num_streaming if member.load is None else max(0, member.load.num_running)


def _waiting(member: Member) -> int:
    return member.in_flight.num_unanswered if member.load is None else max(0, member.load.num_waiting)


def _kv_percent(member: Member) -> int | None:
    load = member.load
    if load is None or load.num_blocks <= 0:
        return None
    return round(100 * (1 - min(1.0, max(0, load.num_free_blocks) / load.num_blocks)))
