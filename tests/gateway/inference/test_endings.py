"""How a request may end otherwise: the client leaves, the gateway drains."""

import asyncio
import gc
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.inference.exchange import Exchange
from gateway.inference.usage_record import UsageRecord
from gateway.metering.folders import list_folders
from tests.support.gateways import Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

LONG: dict[str, Any] = {
    "model": "large",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "stream": True,
    "max_tokens": 400,
    "ignore_eos": True,
}


async def test_leaving_ends_the_work_and_bills_what_was_sent(gateway: Gateway, workers: list[WorkerProcess]) -> None:
    key, num_chunks = await gateway.make_key(), 0
    async with gateway.client(key) as client, client.stream("POST", "/chat/completions", json=LONG) as reply:
        async for line in reply.aiter_lines():
            num_chunks += line.startswith("data: {")
            if num_chunks >= 5:
                break
    await eventually(lambda: len(durable_events(gateway)) == 1)
    [event] = durable_events(gateway)
    assert event.status == "cancelled"
    assert 3 <= event.completion_tokens < 400
    assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400
    large = workers[1]
    await eventually(lambda: large.load()["num_running"] == 0)


async def test_leaving_a_whole_answer_pays_for_the_prompt_and_for_what_was_generated(
    gateway: Gateway, workers: list[WorkerProcess]
) -> None:
    key, large = await gateway.make_key(), workers[1]
    before = large.load()
    async with gateway.client(key) as client:
        # So many answers: a few are made sooner than their first tokens are told.
        request = asyncio.create_task(client.post("/chat/completions", json=LONG | {"stream": False, "n": 64}))
        under_way = gateway.services.outbox._under_way
        await eventually(lambda: any(each is not None and each.completion_tokens for each in under_way.values()))
        request.cancel()
        await asyncio.wait([request])
    await eventually(lambda: len(durable_events(gateway)) == 1)
    [event] = durable_events(gateway)
    assert event.status == "cancelled"
    assert 0 < event.completion_tokens < 64 * 400
    assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400
    await eventually(lambda: large.load()["num_running"] == 0)
    after = large.load()
    made, discarded = (after[name] - before[name] for name in ("completion_tokens_total", "discarded_tokens_total"))
    assert made == event.completion_tokens + discarded, "worker and gateway count the same tokens"


async def test_an_answer_that_could_not_be_recorded_is_told_to_have_failed_and_is_not_billed(gateway: Gateway) -> None:
    key = await gateway.make_key()
    [folder] = list_folders(gateway.services.settings.data_dir)
    async with gateway.client(key) as client:
        with sqlite3.connect(folder / "events.sqlite") as other:
            other.execute("CREATE TRIGGER refuse BEFORE INSERT ON closed BEGIN SELECT RAISE(ABORT, 'no'); END")
        reply = await client.post("/chat/completions", json=LONG | {"stream": False, "max_tokens": 4})
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "usage_not_durable")
        again = await client.post("/chat/completions", json=LONG)
        assert again.status_code == 503, "a gateway that cannot record takes no requests"
        with sqlite3.connect(folder / "events.sqlite") as other:
            other.execute("DROP TRIGGER refuse")
        other.close()
    await eventually(lambda: gateway.services.outbox.failure is None)
    [event] = [event for event in durable_events(gateway) if event.completion_tokens]
    assert (event.status, event.cost_nanousd, event.error_code) == ("error", 0, "usage_not_durable")


async def test_a_stream_under_way_ends_in_peace_while_the_gateway_drains(
    tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]
) -> None:
    async with running_gateway(make_settings(tmp_path, fleet_valkey.url, drain_s=30)) as gateway:
        await eventually(lambda: gateway.services.registry.fleet.pools.get("large"))
        key, lines = await gateway.make_key(), []
        async with gateway.client(key) as client, client.stream("POST", "/chat/completions", json=LONG) as reply:
            async for line in reply.aiter_lines():
                lines.append(line)
                gateway.server.should_exit = True
    assert "data: [DONE]" in lines


@pytest.mark.parametrize("is_stream", [True, False])
async def test_nothing_of_a_request_waits_for_the_garbage_collector(gateway: Gateway, is_stream: bool) -> None:
    key = await gateway.make_key()
    async with gateway.client(key) as client:
        await client.post("/chat/completions", json=LONG | {"stream": is_stream, "max_tokens": 4})
    gc.collect()
    gc.disable()
    try:
        async with gateway.client(key) as client:
            for _ in range(5):
                reply = await client.post("/chat/completions", json=LONG | {"stream": is_stream, "max_tokens": 4})
                assert reply.status_code == 200
        assert not [each for each in gc.get_objects() if type(each) in (Exchange, UsageRecord)]
    finally:
        gc.enable()
