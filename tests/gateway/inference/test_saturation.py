"""A large pool with more work than it can do, of real workers: who waits, who is moved, and what answers tell."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateways import Gateway, declare, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

BODY: dict[str, Any] = {
    "model": "large",
    "messages": [{"role": "user", "content": "Hi!"}],
    "max_tokens": 150,
    "ignore_eos": True,
}
NO_LIMITS = dict.fromkeys(("requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day"))
NUM_WAITING = 3
NUM_CLIENTS = 12


@pytest.fixture(scope="module")
def narrow_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("narrow-valkey")))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def narrow_workers(
    tmp_path_factory: pytest.TempPathFactory, narrow_valkey: ValkeyProcess
) -> Iterator[list[WorkerProcess]]:
    """The large one answers one request at a time."""
    folder = Path(tmp_path_factory.mktemp("narrow"))
    started = [
        WorkerProcess(folder, pool=pool, redis_url=narrow_valkey.url, seed=seed, options=options)
        for pool, seed, options in (("small", 1, ()), ("large", 5, ("--max-num-seqs=1",)))
    ]
    for worker in started:
        worker.wait_until_ready()
    yield started
    for worker in started:
        worker.stop()


@pytest.fixture
async def gateway(
    tmp_path: Path, narrow_valkey: ValkeyProcess, narrow_workers: list[WorkerProcess]
) -> AsyncIterator[Gateway]:
    # What the test before has left there goes first.
    await eventually(lambda: all(each.load()["num_waiting"] == 0 for each in narrow_workers))
    settings = make_settings(tmp_path, narrow_valkey.url, saturated_waiting=NUM_WAITING)
    async with running_gateway(settings) as running:
        for worker in narrow_workers:
            await declare(running, worker.model_id, pool=worker.pool)
        for tier in ("free", "enterprise"):
            await running.admin.patch(f"/tiers/{tier}", json=NO_LIMITS)
        registry = running.services.registry
        await eventually(lambda: all(registry.fleet.pools[worker.pool].members for worker in narrow_workers))
        await eventually(lambda: not is_saturated(running))
        yield running


def is_saturated(gateway: Gateway) -> bool:
    state = gateway.services.gates.states.get("large")
    return state is None or state.is_saturated


@dataclass
class Crowd:
    """Clients, each of which asks again when it has its answer."""

    routes: set[tuple[str, str]] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)

    async def ask_on(self, client: httpx.AsyncClient) -> None:
        while True:
            reply = await client.post("/chat/completions", json=BODY)
            self.statuses.add(reply.status_code)
            self.routes.add((reply.headers["x-tiergate-pool"], reply.headers["x-tiergate-route"]))


@asynccontextmanager
async def crowd(gateway: Gateway, *, tier: str = "enterprise", num: int = NUM_CLIENTS) -> AsyncIterator[Crowd]:
    """Inside, the large pool has all the work that they can make."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(gateway.client(await gateway.make_key(tier=tier)))
        together = Crowd()
        tasks = [asyncio.create_task(together.ask_on(client)) for _ in range(num)]
        try:
            if num > NUM_WAITING:
                await eventually(lambda: is_saturated(gateway))
            yield together
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_free_requests_are_moved_and_told_so_while_enterprise_is_served_where_it_asked(gateway: Gateway) -> None:
    async with gateway.client(await gateway.make_key(tier="free")) as free:
        async with crowd(gateway) as together:
            began_s = time.monotonic()
            while time.monotonic() - began_s < 6:
                reply = await free.post("/chat/completions", json=BODY | {"max_tokens": 2})
                assert reply.status_code == 200, reply.text
                told = [reply.headers[f"x-tiergate-{name}"] for name in ("model", "pool", "route")]
                assert told == ["tiny-small", "small", "saturated"]
                assert reply.json()["model"] == "tiny-small"
            assert together.statuses == {200}
            assert together.routes == {("large", "requested")}
        ended_s = time.monotonic()
        assert gateway.services.gates.of("large").saturation.num_switches == 1
        assert gateway.services.gates.of("large").shedding.num_switches <= 1
        await eventually(lambda: not is_saturated(gateway))
        assert time.monotonic() - ended_s < 5
        reply = await free.post("/chat/completions", json=BODY | {"max_tokens": 2})
        assert (reply.headers["x-tiergate-pool"], reply.headers["x-tiergate-route"]) == ("large", "requested")


async def test_what_may_not_move_is_refused_and_told_when_to_come_back(gateway: Gateway) -> None:
    await gateway.admin.patch("/tiers/free", json={"on_saturation": "reject"})
    async with gateway.client(await gateway.make_key(tier="free")) as free, crowd(gateway):
        reply = await free.post("/chat/completions", json=BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "saturated")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        looked = await free.post("/route", json=BODY)
        assert (looked.status_code, looked.json()["error"]["code"]) == (503, "saturated")
        moved = await free.post("/chat/completions", json=BODY | {"model": "small", "max_tokens": 2})
        assert moved.headers["x-tiergate-route"] == "requested"


async def test_waiting_enterprise_requests_are_served_in_the_order_in_which_they_came(
    gateway: Gateway, narrow_workers: list[WorkerProcess]
) -> None:
    finished: list[int] = []

    def num_there() -> int:
        load = narrow_workers[1].load()
        return load["num_running"] + load["num_waiting"]

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        reply = await client.post("/chat/completions", json=BODY | {"max_tokens": 60})
        assert (reply.status_code, reply.headers["x-tiergate-pool"]) == (200, "large")
        finished.append(number)

    async with gateway.client(await gateway.make_key(tier="enterprise")) as client, asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(ask(client, number))
            # The next one only when this one is there.
            await eventually(lambda sent=number: num_there() + len(finished) > sent)
    assert finished == sorted(finished)


async def test_a_stream_that_waits_is_told_its_place(gateway: Gateway, narrow_workers: list[WorkerProcess]) -> None:
    """By the worker, in comments that clients pass over."""
    places: list[int] = []
    async with (
        gateway.client(await gateway.make_key(tier="enterprise")) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(25):
            group.create_task(client.post("/chat/completions", json=BODY))
        await eventually(lambda: narrow_workers[1].load()["num_waiting"] >= 20)
        async with client.stream("POST", "/chat/completions", json=BODY | {"stream": True}) as reply:
            assert (reply.status_code, reply.headers["x-tiergate-route"]) == (200, "requested")
            async for line in reply.aiter_lines():
                if line.startswith(": waiting position="):
                    places.append(int(line.removeprefix(": waiting position=")))
    assert places and places == sorted(places, reverse=True)
    assert 0 < places[0] <= 26


async def test_best_effort_makes_room_before_enterprise_misses_its_target(gateway: Gateway) -> None:
    """A target that no first token can meet, so that the first ones pass it while others wait."""
    await gateway.admin.patch("/tiers/enterprise", json={"ttft_target_ms": 1})
    large = gateway.services.gates.of("large")
    async with (
        gateway.client(await gateway.make_key(tier="enterprise")) as client,
        crowd(gateway, tier="free", num=2),
    ):
        async with asyncio.timeout(30):
            while not large.shedding.is_closed:
                reply = await client.post("/chat/completions", json=BODY | {"max_tokens": 2})
                assert (reply.status_code, reply.headers["x-tiergate-pool"]) == (200, "large")
        assert not large.saturation.is_closed
        async with gateway.client(await gateway.make_key(tier="free")) as free:
            reply = await free.post("/chat/completions", json=BODY | {"max_tokens": 2})
            assert (reply.headers["x-tiergate-pool"], reply.headers["x-tiergate-route"]) == ("small", "saturated")
        reply = await client.post("/chat/completions", json=BODY | {"max_tokens": 2})
        assert (reply.headers["x-tiergate-pool"], reply.headers["x-tiergate-route"]) == ("large", "requested")


@pytest.mark.long
async def test_under_a_steady_load_of_both_tiers_a_state_switches_once(gateway: Gateway) -> None:
    """Free clients ask on at the small pool; were they let back in, the large one would be full again at once."""
    gate = gateway.services.gates.of("large")
    async with crowd(gateway) as enterprise, crowd(gateway, tier="free", num=NUM_WAITING) as free:
        before = gate.saturation.num_switches
        began_s = time.monotonic()
        while time.monotonic() - began_s < 25:
            assert gate.saturation.num_switches == before
            await asyncio.sleep(0.2)
        assert gate.shedding.num_switches <= 1
        assert (enterprise.statuses, free.statuses) == ({200}, {200})
        assert (enterprise.routes, free.routes) == ({("large", "requested")}, {("small", "saturated")})
    ended_s = time.monotonic()
    await eventually(lambda: not is_saturated(gateway))
    assert time.monotonic() - ended_s < 5
