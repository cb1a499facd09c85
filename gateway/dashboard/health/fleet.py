"""Checks of what answers requests: pools, replicas, and this gateway itself."""

import time
from datetime import datetime

from gateway.dashboard.health.troubles import Trouble
from gateway.services import Services
from router.fleet import usable_members

_FLEET = "/dashboard/fleet"


async def look_at_gateway(services: Services, now: datetime) -> list[Trouble]:
    found = []
    if services.is_draining():
        found.append(Trouble("warning", "This gateway was told to stop, and ends its last requests.", "Use another."))
    if services.overload.is_shedding:
        found.append(
            Trouble(
                "error",
                "This gateway is at its capacity and refuses requests, batches first and enterprise last.",
                "More processes (TIERGATE_PROCESSES) or more gateways.",
            )
        )
    return found


async def look_at_pools(services: Services, now: datetime) -> list[Trouble]:
    found = []
    for pool in services.registry.fleet.pools.values():
        if not usable_members(pool):
            found.append(
                Trouble(
                    "error",
                    f"The pool {pool.name} ({pool.model_id}) has no replica that takes requests: they get 503, or go "
                    "to another pool.",
                    "Start a worker with tiergate worker --pool, or take a drained one back. The worker key must be "
                    "the same on both sides.",
                    _FLEET,
                )
            )
        elif (state := services.gates.states.get(pool.name)) is not None and (state.is_saturated or state.is_shedding):
            found.append(
                Trouble(
                    "warning",
                    f"The pool {pool.name} is full: requests wait or are refused, best effort first.",
                    "More replicas, or lower limits for the tier that floods it.",
                    _FLEET,
                )
            )
    return found


async def look_at_replicas(services: Services, now: datetime) -> list[Trouble]:
    found, clock = [], time.monotonic()
    for pool in services.registry.fleet.pools.values():
        for member in pool.members:
            state = services.registry.health.state(member.worker_id, clock)
            if member.is_healthy and state in ("closed", "starting"):
                continue
            found.append(
                Trouble(
                    "warning",
                    f"The replica {member.worker_id} of {pool.name} at {member.url} gets no requests; its breaker is "
                    f"{state}.",
                    "Its log and its /ready say why. It is tried again by itself.",
                    _FLEET,
                )
            )
    return found
