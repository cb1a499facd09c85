"""A first token that is late is asked of a second replica, too: one answer, one bill, and nobody computes on."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aiohttp import web

from protocol.accounting import DONE_EVENT, Accounting, accounting_comment, data_event, tokens_comment
from router.hedge import ENOUGH
from tests.support.gateways import Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.members import pools, serving_member
from tests.support.valkey import ValkeyProcess

USUAL_MS = 20.0
WAITING = b": waiting position=2\n\n"
BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}


@dataclass
class Replica:
    """It speaks when it may; `text` is all that it says."""

    text: str
    may_speak: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: bool = False
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def said(self) -> bytes:
        body = {"choices": [{"index": 0, "delta": {"content": self.text}}], "id": self.text}
        return data_event(msgspec.json.encode(body))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(WAITING)
        self.is_asked.set()
        transport = request.transport
        assert transport is not None
        while not self.may_speak.is_set():
            if transport.is_closing():
                self.is_left.set()
                return response
            await asyncio.sleep(0.01)
        if self.breaks:
            transport.abort()
            return response
        figures = Accounting(
            prompt_tokens=11,
            cached_prompt_tokens=0,
            completion_tokens=len(self.text),
            queue_ms=1,
            compute_ms=2,
            worker_id=self.text,
            finish_reason="stop",
        )
        ids = tokens_comment(list(range(len(self.text))))
        await response.write(ids + self.said + accounting_comment(figures) + DONE_EVENT)
        return response


@asynccontextmanager
async def hedging(
    tmp_path: Path, valkey: ValkeyProcess, first: Replica, second: Replica, *, is_hedged: bool = True
) -> AsyncIterator[Gateway]:
    """The first is the least loaded; both were quick so far."""
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving_member(each.answer, worker_id=each.text, num_waiting=i))
            for i, each in enumerate((first, second))
        ]
        fields = {"pools": pools(*({"url": url} for url in urls)), "worker_key": "key-of-these-members"}
        gateway = await stack.enter_async_context(running_gateway(make_settings(tmp_path, valkey.url, **fields)))
        reply = await gateway.admin.patch("/tiers/enterprise", json={"is_hedged": is_hedged})
        assert reply.json()["is_hedged"] == is_hedged
        for member in gateway.services.registry.fleet.pools["small"].members:
            for _ in range(ENOUGH):
                member.in_flight.note_ttft(USUAL_MS, time.monotonic())
        yield gateway


async def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    async with gateway.client(await gateway.make_key(tier="enterprise")) as client:
        return await client.post("/chat/completions", json=BODY | fields)


def num_under_way(gateway: Gateway) -> int:
    return sum(each.in_flight.num_requests for each in gateway.services.registry.fleet.pools["small"].members)


def hedges(gateway: Gateway) -> dict[tuple[str, ...], float]:
    [family] = gateway.services.metrics.hedges.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@pytest.mark.parametrize("stream", [True, False])
async def test_the_second_answers_when_the_first_is_late(tmp_path: Path, valkey: ValkeyProcess, stream: bool) -> None:
    slow, quick = Replica("slow"), Replica("quick")
    quick.may_speak.set()
    async with hedging(tmp_path, valkey, slow, quick) as gateway:
        reply = await ask(gateway, stream=stream)
        assert reply.status_code == 200 and b"quick" in reply.content and b"slow" not in reply.content
        if stream:
            assert reply.content.replace(WAITING, b"") == quick.said + DONE_EVENT
        assert (reply.headers["x-tiergate-pool"], reply.headers["x-tiergate-route"]) == ("small", "requested")
        [event] = durable_events(gateway)
        assert (event.status, event.worker_id, event.num_attempts) == ("ok", "quick", 2)
        assert (event.prompt_tokens, event.completion_tokens) == (11, len("quick"))
        async with asyncio.timeout(5):
            await slow.is_left.wait()
        assert num_under_way(gateway) == 0
        assert hedges(gateway) == {("small", "won"): 1}


async def test_the_first_may_still_be_the_quicker_one(tmp_path: Path, valkey: ValkeyProcess) -> None:
    first, second = Replica("first"), Replica("second")
    async with hedging(tmp_path, valkey, first, second) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=True))
        await second.is_asked.wait()
        first.may_speak.set()
        reply = await asking
        assert reply.content.replace(WAITING, b"") == first.said + DONE_EVENT
        [event] = durable_events(gateway)
        assert (event.worker_id, event.completion_tokens, event.num_attempts) == ("first", len("first"), 2)
        async with asyncio.timeout(5):
            await second.is_left.wait()
        assert num_under_way(gateway) == 0
        assert hedges(gateway) == {("small", "lost"): 1}


async def test_other_tiers_wait(tmp_path: Path, valkey: ValkeyProcess) -> None:
    first, second = Replica("first"), Replica("second")
    async with hedging(tmp_path, valkey, first, second, is_hedged=False) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=True))
        await first.is_asked.wait()
        await asyncio.sleep(10 * USUAL_MS / 1000)
        first.may_speak.set()
        assert (await asking).content == WAITING + first.said + DONE_EVENT
        assert not second.is_asked.is_set()


@pytest.mark.parametrize("breaking", ["first", "second"])
async def test_one_that_breaks_off_leaves_it_to_the_other(tmp_path: Path, valkey: ValkeyProcess, breaking: str) -> None:
    first, second = (Replica(name, breaks=name == breaking) for name in ("first", "second"))
    broken, good = (first, second) if breaking == "first" else (second, first)
    async with hedging(tmp_path, valkey, first, second) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=True))
        await second.is_asked.wait()
        broken.may_speak.set()
        await eventually(lambda: not is_healthy(gateway, breaking))
        good.may_speak.set()
        reply = await asking
        assert reply.content.replace(WAITING, b"") == good.said + DONE_EVENT
        assert not is_healthy(gateway, breaking)
        assert num_under_way(gateway) == 0
        [event] = durable_events(gateway)
        assert (event.status, event.worker_id) == ("ok", good.text)


def is_healthy(gateway: Gateway, worker_id: str) -> bool:
    members = gateway.services.registry.fleet.pools["small"].members
    return next(member.is_healthy for member in members if member.worker_id == worker_id)


async def test_a_client_that_leaves_leaves_both(tmp_path: Path, valkey: ValkeyProcess) -> None:
    first, second = Replica("first"), Replica("second")
    async with hedging(tmp_path, valkey, first, second) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=True))
        await second.is_asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(5):
            await first.is_left.wait()
            await second.is_left.wait()
        await eventually(lambda: len(durable_events(gateway)) == 1)
        [event] = durable_events(gateway)
        # Both said that the request waits: nothing was computed.
        assert (event.status, event.prompt_tokens, event.completion_tokens) == ("cancelled", 0, 0)
        assert num_under_way(gateway) == 0
