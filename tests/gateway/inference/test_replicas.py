"""Replicas that fail: another answers while nothing was sent, and the client is told when something was."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from gateway.inference.refusals import as_broken_off
from gateway.settings import GatewaySettings
from protocol.accounting import DONE_EVENT, Accounting, accounting_comment, data_event, tokens_comment
from router.hedge import ENOUGH
from tests.support.fleets import member
from tests.support.gateways import Gateway, durable_events, make_settings, running_gateway
from tests.support.members import Handler, be_full, hang_up, pools, serving_member, stream_of
from tests.support.valkey import ValkeyProcess

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}
FIGURES = Accounting(
    prompt_tokens=11,
    cached_prompt_tokens=4,
    completion_tokens=3,
    queue_ms=1,
    compute_ms=2,
    worker_id="good",
    finish_reason="stop",
)
HELLO = data_event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
WORLD = data_event(b'{"choices":[{"index":0,"delta":{"content":" world"}}]}')
GOOD = stream_of(tokens_comment([1, 2, 3]) + HELLO, accounting_comment(FIGURES) + DONE_EVENT)


@asynccontextmanager
async def gateway_before(tmp_path: Path, valkey: ValkeyProcess, *handlers: Handler) -> AsyncIterator[Gateway]:
    """A gateway whose pool has these members; the first is the least loaded."""
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving_member(handler, worker_id=f"w{i}", num_waiting=i))
            for i, handler in enumerate(handlers)
        ]
        # Not the key of the workers that other tests register in the same Valkey.
        fields = {"pools": pools(*({"url": url} for url in urls)), "worker_key": "key-of-these-members"}
        yield await stack.enter_async_context(running_gateway(make_settings(tmp_path, valkey.url, **fields)))


async def send(gateway: Gateway, **fields: Any) -> httpx.Response:
    async with gateway.client(await gateway.make_key()) as client:
        return await client.post("/chat/completions", json=BODY | fields)


async def test_another_replica_answers_when_one_hangs_up(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, hang_up, GOOD) as gateway:
        reply = await send(gateway, stream=True)
        assert reply.content == HELLO + DONE_EVENT
        [event] = durable_events(gateway)
        assert (event.status, event.worker_id, event.completion_tokens) == ("ok", "good", 3)
        assert (event.prompt_tokens, event.cached_prompt_tokens) == (11, 4)
        members = gateway.services.registry.fleet.pools["small"].members
        assert [member.is_healthy for member in members] == [False, True]


async def test_another_replica_answers_when_one_is_full(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, be_full, GOOD) as gateway:
        assert (await send(gateway, stream=True)).status_code == 200
        members = gateway.services.registry.fleet.pools["small"].members
        assert [member.is_healthy for member in members] == [True, True]


async def test_when_all_are_full_the_client_learns_when_to_come_back(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, be_full) as gateway:
        reply = await send(gateway)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "7")
        assert reply.json()["error"]["code"] == "saturated"
        [event] = durable_events(gateway)
        assert (event.status, event.prompt_tokens, event.cost_nanousd) == ("error", 0, 0)
        assert (event.error_code, event.price_lines) == ("saturated", ())
        assert event.error_message == "every replica that may serve this request is busy"


async def test_a_503_costs_no_request_of_the_limit(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, be_full) as gateway:
        await gateway.admin.patch("/tiers/free", json={"requests_per_minute": 1})
        async with gateway.client(await gateway.make_key(tier="free")) as client:
            for _ in range(3):
                assert (await client.post("/chat/completions", json=BODY)).status_code == 503
                await gateway.services.limiter.settlements.drain_once()


@pytest.mark.parametrize("engine", ["tiergate", "openai"])
async def test_a_stream_that_nobody_can_go_on_with_ends_with_an_error_and_costs_nothing(
    tmp_path: Path, valkey: ValkeyProcess, engine: str
) -> None:
    comment = tokens_comment([1, 2]) if engine == "tiergate" else b""
    broken = stream_of(comment + HELLO, *([HELLO] if engine == "openai" else []), is_cut=True)
    async with serving_member(broken) as url:
        fields = {"pools": pools({"url": url, "engine": engine, "model": "m"}), "continue_wait_s": 0.2}
        await check_broken_off(make_settings(tmp_path, valkey.url, **fields))


def test_a_workers_error_in_mid_stream_is_told_in_its_own_words() -> None:
    error = b'{"error":{"message":"`m-7b` ran out of memory","type":"server_error","param":null,"code":"oom"}}'
    told = as_broken_off(error, member("w"), sent_model="m-7b", shown_model="ours")
    assert (told.status, told.body) == (502, error.replace(b"m-7b", b"ours"))
    others = as_broken_off(error, member("w", engine="openai"), sent_model="m-7b", shown_model="ours")
    assert others.status == 502 and b"memory" not in others.body


async def check_broken_off(settings: GatewaySettings) -> None:
    async with running_gateway(settings) as gateway:
        reply = await send(gateway, stream=True)
        assert reply.content.startswith(HELLO)
        error = json.loads(reply.content.replace(HELLO, b"").removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "upstream_failed")
        assert b"[DONE]" not in reply.content
        [event] = durable_events(gateway)
        assert (event.status, event.completion_tokens, event.cost_nanousd) == ("error", 2, 0)
        assert (event.error_code, event.num_attempts, event.cost_nanousd, event.price_lines) == (
            "upstream_failed",
            1,
            0,
            (),
        )


async def test_comments_before_the_first_token_do_not_bind_the_request_to_a_replica(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    waiting = stream_of(b": waiting position=3\n\n", is_cut=True)
    async with gateway_before(tmp_path, valkey, waiting, GOOD) as gateway:
        reply = await send(gateway, stream=True)
        assert reply.content == b": waiting position=3\n\n" + HELLO + DONE_EVENT


async def test_a_workers_refusal_is_the_answer_and_is_not_billed(tmp_path: Path, valkey: ValkeyProcess) -> None:
    refusal = {"error": {"message": "no such shape", "type": "invalid_request_error", "param": "n", "code": "x"}}

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response(refusal, status=400)

    async with gateway_before(tmp_path, valkey, refuse, GOOD) as gateway:
        reply = await send(gateway)
        assert (reply.status_code, reply.json()) == (400, refusal)
        [event] = durable_events(gateway)
        assert (event.status, event.cost_nanousd) == ("error", 0)
        # A member's own words may quote the prompt.
        assert (event.error_code, event.error_message) == ("upstream_refused", "the worker answered 400")


async def test_what_a_member_lacks_is_looked_for_elsewhere_and_its_name_there_stays_private(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async def lack(_request: web.Request) -> web.StreamResponse:
        error = {"message": "the model 'm' is not here", "type": "not_found_error", "code": "model_not_found"}
        return web.json_response({"error": error}, status=404)

    async with gateway_before(tmp_path, valkey, lack, GOOD) as gateway:
        assert (await send(gateway, stream=True)).status_code == 200
    async with gateway_before(tmp_path / "alone", valkey, lack) as gateway:
        reply = await send(gateway)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert "'m'" not in reply.text
        assert all(member.is_healthy for member in gateway.services.registry.fleet.pools["small"].members)


async def test_no_replica_at_all_is_503(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, hang_up) as gateway:
        assert (await send(gateway)).status_code == 502
        reply = await send(gateway)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize("is_hedged", [False, True])
async def test_text_that_comes_with_an_error_is_sent_before_another_replica_goes_on(
    tmp_path: Path, valkey: ValkeyProcess, is_hedged: bool
) -> None:
    """In one piece, as a worker that is stopped sends its last tokens and its last word."""
    given: list[Any] = []

    async def go_on(request: web.Request) -> web.StreamResponse:
        given.append((await request.json()).get("continue_from"))
        return await stream_of(tokens_comment([3]) + WORLD, accounting_comment(FIGURES) + DONE_EVENT)(request)

    stopping = data_event(b'{"error":{"message":"stopping","type":"server_error","code":"shutting_down"}}')
    async with gateway_before(tmp_path, valkey, stream_of(tokens_comment([1, 2]) + HELLO + stopping), go_on) as gateway:
        await gateway.admin.patch("/tiers/enterprise", json={"is_hedged": is_hedged})
        for member in gateway.services.registry.fleet.pools["small"].members:
            for _ in range(ENOUGH):
                # So late that no second replica is asked.
                member.in_flight.note_ttft(60_000, time.monotonic())
        async with gateway.client(await gateway.make_key(tier="enterprise")) as client:
            reply = await client.post("/chat/completions", json=BODY | {"stream": True})
        if is_hedged:
            # Nothing was sent before the first token was whole, so that the other one may begin anew.
            assert (reply.content, given) == (WORLD + DONE_EVENT, [None])
        else:
            assert (reply.content, given) == (HELLO + WORLD + DONE_EVENT, [[[1, 2]]])
        [event] = durable_events(gateway)
        assert (event.status, event.completion_tokens, event.num_attempts) == ("ok", 3, 2)
