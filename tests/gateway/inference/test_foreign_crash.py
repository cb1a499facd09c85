"""Servers that are taken for another engine's hang and die under real streams: nobody can go on with their answers."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway.inference.test_continuation import (
    NUM_STREAMS,
    bodies,
    busiest,
    checkpoint,
    hear_all,
    two_workers,
    usable,
)
from tests.support.gateways import WORKER_KEY, Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

ENDLESS = {"logit_bias": {"0": -100, "2": -100}}
"""No token that ends an answer; `ignore_eos` is not OpenAI's."""
__all__ = ["checkpoint"]


@asynccontextmanager
async def gateway_of_strangers(
    folder: Path, valkey: ValkeyProcess, workers: list[WorkerProcess], *, idle_timeout_s: float
) -> AsyncIterator[Gateway]:
    """It knows the workers as any OpenAI-compatible servers."""
    model_id = workers[0].model_id
    members = [
        {"url": worker.url, "engine": "openai", "model": model_id, "api_key_env": "STRANGERS_KEY"} for worker in workers
    ]
    pools = {"small": {"model": model_id, "context_window": 2048, "members": members}}
    settings = make_settings(folder, valkey.url, worker_key=None, pools=pools, idle_timeout_s=idle_timeout_s)
    async with running_gateway(settings) as gateway:
        await gateway.post("/prices", {"model_id": model_id, "prompt_nanousd": 100, "completion_nanousd": 400})
        await eventually(lambda: len(usable(gateway)) == 2)
        yield gateway


@pytest.mark.long
async def test_what_hangs_is_left_and_what_is_killed_breaks_only_what_it_had_begun(
    tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANGERS_KEY", WORKER_KEY)
    with two_workers(tmp_path, own_valkey, checkpoint) as workers:
        async with gateway_of_strangers(tmp_path / "1", own_valkey, workers, idle_timeout_s=5) as gateway:
            await check_one_that_hangs(gateway, workers)
        # A whole answer is silent until it is whole.
        async with gateway_of_strangers(tmp_path / "2", own_valkey, workers, idle_timeout_s=120) as gateway:
            await check_one_that_dies(gateway, workers)


async def check_one_that_hangs(gateway: Gateway, workers: list[WorkerProcess]) -> None:
    hung, other = workers
    hung.process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    async with gateway.client(await gateway.make_key()) as client:
        body = bodies()[4] | {"max_tokens": 1}
        replies = await asyncio.gather(*(client.post("/chat/completions", json=body) for _ in range(8)))
        assert [reply.status_code for reply in replies] == [200] * 8
        await eventually(lambda: usable(gateway) == {other.url})
        assert time.monotonic() - began_s < 15
        hung.process.send_signal(signal.SIGCONT)
        await eventually(lambda: usable(gateway) == {hung.url, other.url})


async def check_one_that_dies(gateway: Gateway, workers: list[WorkerProcess]) -> None:
    expected = await hear_all(gateway, **ENDLESS)
    num_before = len(durable_events(gateway))
    victims: list[WorkerProcess] = []

    def kill_busiest() -> None:
        victims.append(busiest(gateway, workers))
        victims[0].process.kill()

    heard = await hear_all(gateway, disturb=kill_busiest, **ENDLESS)
    await eventually(lambda: usable(gateway) == {worker.url for worker in workers if worker is not victims[0]})
    broken = [each for each in heard if each.error is not None]
    assert 0 < len(broken) < NUM_STREAMS
    for body, one, other in zip(bodies(), heard, expected, strict=True):
        assert one.status == 200
        if one.error is None:
            assert (one.texts, one.ends) == (other.texts, other.ends)
            # Another replica's cache may hold more or less of the prompt.
            assert all(one.usage[name] == other.usage[name] for name in ("prompt_tokens", "completion_tokens"))
        else:
            # What had no token yet was asked of the other replica, and whole answers have none until they are whole.
            assert body.get("stream") and one.error["code"] == "upstream_failed"
            assert all(other.texts[index].startswith(text) for index, text in one.texts.items())
    events = durable_events(gateway)[num_before:]
    assert len(events) == NUM_STREAMS == len({event.request_id for event in events})
    billed = [(event.prompt_tokens, event.completion_tokens) for event in events if event.status == "ok"]
    assert sorted(billed) == sorted(
        (one.usage["prompt_tokens"], one.usage["completion_tokens"]) for one in heard if one.error is None
    )
    failed = [event for event in events if event.status == "error"]
    assert len(failed) == len(broken) and not any(event.cost_nanousd for event in failed)
