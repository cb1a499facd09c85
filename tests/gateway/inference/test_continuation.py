"""Replicas that die or hang under real streams: others go on, and neither text nor bill tell the difference."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.usage import UsageEvent
from router.fleet import usable_members
from router.hedge import ENOUGH
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.gateways import Gateway, declare, durable_events, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

NUM_STREAMS = 50
NUM_TOKENS = 800


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=3, max_model_len=2048)


@contextmanager
def two_workers(
    tmp_path: Path, valkey: ValkeyProcess, checkpoint: Path, *, drain_grace_s: float = 30
) -> Iterator[list[WorkerProcess]]:
    workers = [
        WorkerProcess(tmp_path, pool="small", redis_url=valkey.url, model=checkpoint, drain_grace_s=drain_grace_s)
        for _ in range(2)
    ]
    try:
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.stop()


@asynccontextmanager
async def gateway_of_two(
    tmp_path: Path, valkey: ValkeyProcess, workers: list[WorkerProcess], **fields: Any
) -> AsyncIterator[Gateway]:
    async with running_gateway(make_settings(tmp_path, valkey.url, **fields)) as gateway:
        await declare(gateway, workers[0].model_id, pool="small", context_window=2048)
        await eventually(lambda: len(usable(gateway)) == 2)
        await eventually(lambda: gateway.services.bundles.bundle_of("small"))
        yield gateway


def usable(gateway: Gateway) -> set[str]:
    return {member.url for member in usable_members(gateway.services.registry.fleet.pools["small"])}


@dataclass
class Heard:
    """What a client made of one answer."""

    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None

    @property
    def is_under_way(self) -> bool:
        return len(self.texts.get(0, "")) > 3 and not self.ends


def bodies(**fields: Any) -> list[dict[str, Any]]:
    """Greedy streams, sampled ones with several answers, and whole answers; each with a prompt of its own."""
    made = []
    for i in range(NUM_STREAMS):
        body: dict[str, Any] = {
            "model": "small",
            "messages": [{"role": "user", "content": f"What is {i} + {i}?"}],
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        if i % 5 == 3:
            body |= {"temperature": 1.0, "seed": i, "n": 2, "max_tokens": NUM_TOKENS // 2}
        if i % 5 == 4:
            del body["stream"], body["stream_options"]
        made.append(body)
    return made


async def hear(client: httpx.AsyncClient, body: dict[str, Any], heard: Heard) -> None:
    if not body.get("stream"):
        reply = await client.post("/chat/completions", json=body)
        answer = reply.json()
        heard.status, heard.error, heard.usage = reply.status_code, answer.get("error"), answer.get("usage", {})
        for choice in answer.get("choices", ()):
            heard.texts[choice["index"]] = choice["message"]["content"]
            heard.ends[choice["index"]] = choice["finish_reason"]
        return
    async with client.stream("POST", "/chat/completions", json=body) as reply:
        heard.status = reply.status_code
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            heard.error = chunk.get("error", heard.error)
            heard.usage = chunk.get("usage") or heard.usage
            for choice in chunk.get("choices", ()):
                text = choice["delta"].get("content") or ""
                heard.texts[choice["index"]] = heard.texts.get(choice["index"], "") + text
                if choice["finish_reason"]:
                    heard.ends[choice["index"]] = choice["finish_reason"]


async def hear_all(gateway: Gateway, *, disturb: Callable[[], None] | None = None, **fields: Any) -> list[Heard]:
    """Every answer to `bodies(**fields)`; `disturb` is called when more than half of them are under way at once."""
    found = [Heard() for _ in range(NUM_STREAMS)]
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {await gateway.make_key()}"}
    async with (
        httpx.AsyncClient(base_url=gateway.base_url, headers=headers, timeout=120, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        for body, heard in zip(bodies(**fields), found, strict=True):
            group.create_task(hear(client, body, heard))
        if disturb is not None:
            streams = [heard for body, heard in zip(bodies(), found, strict=True) if body.get("stream")]
            await eventually(lambda: sum(heard.is_under_way for heard in streams) > NUM_STREAMS / 2)
            disturb()
    return found


def told(events: list[UsageEvent]) -> list[tuple[Any, ...]]:
    return sorted((each.status, each.prompt_tokens, each.completion_tokens, each.cost_nanousd) for each in events)


def busiest(gateway: Gateway, workers: list[WorkerProcess]) -> WorkerProcess:
    members = gateway.services.registry.fleet.pools["small"].members
    url = max(members, key=lambda member: member.in_flight.num_requests).url
    return next(worker for worker in workers if worker.url == url)


async def check_nobody_notices(
    gateway: Gateway, workers: list[WorkerProcess], disturb: Callable[[WorkerProcess], None]
) -> WorkerProcess:
    """The answers are those of an undisturbed run; the worker that was disturbed while it had streams."""
    victims: list[WorkerProcess] = []

    def disturb_busiest() -> None:
        victims.append(busiest(gateway, workers))
        disturb(victims[0])

    expected = await hear_all(gateway)
    events = durable_events(gateway)
    disturbed = await hear_all(gateway, disturb=disturb_busiest)
    for one, other in zip(disturbed, expected, strict=True):
        assert (one.error, one.status, one.texts, one.ends) == (None, 200, other.texts, other.ends)
        assert one.usage["completion_tokens"] == other.usage["completion_tokens"]
        assert one.usage["prompt_tokens"] == other.usage["prompt_tokens"]
    billed = durable_events(gateway)
    assert len(billed) == 2 * NUM_STREAMS == len({event.request_id for event in billed})
    # Another replica's cache may hold more or less of a prompt, and a cached token has a price of its own.
    assert [each[:3] for each in told(billed)] == sorted(each[:3] for each in told(events) * 2)
    assert gateway.services.metrics.continuations.labels("small")._value.get() > 0
    return victims[0]


async def test_kill_9_under_50_streams_is_a_pause(tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path) -> None:
    with two_workers(tmp_path, own_valkey, checkpoint) as workers:
        async with gateway_of_two(tmp_path, own_valkey, workers) as gateway:
            dead = await check_nobody_notices(gateway, workers, lambda worker: worker.process.kill())
            await eventually(lambda: usable(gateway) == {worker.url for worker in workers if worker is not dead})


@pytest.mark.long
@pytest.mark.parametrize("grace_s", [60, 0])
async def test_a_worker_that_is_stopped_in_order_breaks_no_answer(
    tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path, grace_s: int
) -> None:
    """What it cannot end within its grace goes on elsewhere."""
    stopped: list[WorkerProcess] = []
    with two_workers(tmp_path, own_valkey, checkpoint, drain_grace_s=grace_s) as workers:
        async with gateway_of_two(tmp_path, own_valkey, workers) as gateway:

            def stop_busiest() -> None:
                stopped.append(busiest(gateway, workers))
                stopped[0].process.terminate()

            expected = await hear_all(gateway)
            found = await hear_all(gateway, disturb=stop_busiest)
            for one, other in zip(found, expected, strict=True):
                assert (one.error, one.status, one.texts, one.ends) == (None, 200, other.texts, other.ends)
            assert len(durable_events(gateway)) == 2 * NUM_STREAMS
            assert {event.status for event in durable_events(gateway)} == {"ok"}
            assert (gateway.services.metrics.continuations.labels("small")._value.get() > 0) == (grace_s == 0)
            assert await asyncio.to_thread(stopped[0].process.wait, 30) == 0
            await eventually(lambda: usable(gateway) == {worker.url for worker in workers if worker is not stopped[0]})


async def test_a_worker_that_hangs_is_left_and_comes_back(
    tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path
) -> None:
    with two_workers(tmp_path, own_valkey, checkpoint) as workers:
        async with gateway_of_two(tmp_path, own_valkey, workers, worker_silence_s=6.0) as gateway:
            hung = await check_nobody_notices(
                gateway, workers, lambda worker: worker.process.send_signal(signal.SIGSTOP)
            )
            assert usable(gateway) == {worker.url for worker in workers if worker is not hung}
            async with gateway.client(await gateway.make_key()) as client:
                reply = await client.post("/chat/completions", json=bodies()[4] | {"max_tokens": 1})
                assert reply.status_code == 200
            hung.process.send_signal(signal.SIGCONT)
            await eventually(lambda: usable(gateway) == {worker.url for worker in workers})


@pytest.mark.long
async def test_a_hedged_tier_does_not_wait_for_a_worker_that_hangs(
    tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path
) -> None:
    body = bodies()[0] | {"max_tokens": 5}
    with two_workers(tmp_path, own_valkey, checkpoint) as workers:
        async with gateway_of_two(tmp_path, own_valkey, workers, request_timeout_s=120) as gateway:
            await gateway.admin.patch("/tiers/enterprise", json={"is_hedged": True})
            async with gateway.client(await gateway.make_key(tier="enterprise")) as client:

                async def ask() -> tuple[int, str]:
                    reply = await client.post("/chat/completions", json=body)
                    texts = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
                    return reply.status_code, "".join(
                        choice["delta"].get("content") or "" for each in texts for choice in each["choices"]
                    )

                expected = [await ask() for _ in range(ENOUGH)]
                assert {status for status, _ in expected} == {200}
                workers[0].process.send_signal(signal.SIGSTOP)
                found = await asyncio.gather(*(ask() for _ in range(12)))
                workers[0].process.send_signal(signal.SIGCONT)
            assert set(found) == set(expected) and len(set(found)) == 1
            [hedges] = gateway.services.metrics.hedges.collect()
            assert sum(sample.value for sample in hedges.samples if sample.labels["outcome"] == "won") > 0
            # Nobody waited until the silence of the one that hangs was a failure.
            [failures] = gateway.services.metrics.upstream_failures.collect()
            assert failures.samples == []
            events = durable_events(gateway)
            assert len(events) == ENOUGH + 12 and {event.completion_tokens for event in events} == {5}
            assert {event.status for event in events} == {"ok"}
