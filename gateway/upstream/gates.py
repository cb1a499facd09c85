"""A loop that updates the gates of all pools from the current fleet."""

import asyncio
import time

from gateway.metrics import Metrics
from gateway.upstream.registry import Registry
from router.gate import Gates

LOOK_S = 0.25


async def watch_gates(gates: Gates, registry: Registry, metrics: Metrics) -> None:
    while True:
        gates.observe(registry.fleet, time.monotonic())
        for name, state in gates.states.items():
            metrics.pool_saturated.labels(name).set(state.is_saturated)
            metrics.pool_shedding.labels(name).set(state.is_shedding)
            gate = gates.of(name)
            metrics.pool_switches.labels(name, "saturated").set(gate.saturation.num_switches)
            metrics.pool_switches.labels(name, "shedding").set(gate.shedding.num_switches)
        await asyncio.sleep(LOOK_S)
