"""A member that is somebody else's server gets only what OpenAI's API knows, and is billed by its own figures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from gateway.http.connection import Connection
from gateway.upstream.http.connection import HIGH_WATER_BYTES
from protocol.accounting import DONE_EVENT, data_event
from tests.support.front_doors import DEADLINE_S, Client
from tests.support.gateways import Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.members import Handler, pools, serving_member, stream_of
from tests.support.valkey import ValkeyProcess

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def event(**fields: Any) -> bytes:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-name", **fields}
    return data_event(json.dumps(chunk).encode())


TEXT = event(choices=[{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}])
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
FIGURES = event(choices=[], usage=USAGE)


@asynccontextmanager
async def gateway_before(
    tmp_path: Path,
    valkey: ValkeyProcess,
    *handlers: Handler,
    context_window: int = 512,
    models: Handler | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """A gateway whose pool has these foreign members."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_member(handler, models=models)) for handler in handlers]
        members = [{"url": url, "engine": "openai", "model": "their-name"} for url in urls]
        pool = {"model": "m", "context_window": context_window, "members": members}
        yield await stack.enter_async_context(
            running_gateway(make_settings(tmp_path, valkey.url, pools={"small": pool}, **settings))
        )


def whole(content: str = "Hello", **fields: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "model": "their-name", "choices": [choice], **fields})

    return answer


async def ask(gateway: Gateway, **fields: Any) -> bytes:
    async with gateway.client(await gateway.make_key()) as client:
        reply = await client.post("/chat/completions", json=BODY | fields)
        assert reply.status_code == 200, reply.text
        return reply.content


async def test_it_is_sent_only_openais_fields(tmp_path: Path, valkey: ValkeyProcess) -> None:
    seen: dict[str, Any] = {}

    async def remember(request: web.Request) -> web.StreamResponse:
        seen.update(body=await request.json(), headers=dict(request.headers))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "model": "their-name", "choices": [choice], "usage": USAGE})

    async with (
        serving_member(remember) as url,
        running_gateway(
            make_settings(tmp_path, valkey.url, pools=pools({"url": url, "engine": "openai", "model": "their-name"}))
        ) as gateway,
    ):
        answer = json.loads(await ask(gateway, top_k=5, ignore_eos=True, priority=0, user="u", seed=3))
        [billed] = durable_events(gateway)
    assert seen["body"] == {"model": "their-name", "messages": BODY["messages"], "max_tokens": 9, "seed": 3}
    assert not [name for name in seen["headers"] if name.lower().startswith(("x-tiergate", "authorization"))]
    assert answer["model"] == "m"
    assert (billed.prompt_tokens, billed.completion_tokens, billed.status) == (7, 5, "ok")


async def test_its_usage_chunk_is_billed_and_shown_only_when_asked_for(tmp_path: Path, valkey: ValkeyProcess) -> None:
    handler = stream_of(TEXT, END, FIGURES, DONE_EVENT)
    async with (
        serving_member(handler) as url,
        running_gateway(
            make_settings(tmp_path, valkey.url, pools=pools({"url": url, "engine": "openai", "model": "their-name"}))
        ) as gateway,
    ):
        plain = await ask(gateway, stream=True)
        asked = await ask(gateway, stream=True, stream_options={"include_usage": True})
        events = durable_events(gateway)
    assert plain == (TEXT + END).replace(b"their-name", b"m") + DONE_EVENT
    assert asked == (TEXT + END + FIGURES).replace(b"their-name", b"m") + DONE_EVENT
    assert [(e.prompt_tokens, e.completion_tokens, e.finish_reason) for e in events] == [(7, 5, "stop")] * 2


async def test_chunks_that_come_together_leave_together(tmp_path: Path, valkey: ValkeyProcess) -> None:
    """As one part of the answer's body, that is one write and one HTTP chunk."""

    async def in_one_piece(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(TEXT * 30)
        await go_on.wait()
        await response.write(END + FIGURES + DONE_EVENT)
        return response

    go_on = asyncio.Event()
    async with gateway_before(tmp_path, valkey, in_one_piece) as gateway:
        body = json.dumps(BODY | {"stream": True}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {await gateway.make_key()}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        client = await Client.connect(httpx.URL(gateway.origin).port or 0)
        await client.send(head.encode() + body)
        async with asyncio.timeout(DEADLINE_S):
            await client.reader.readuntil(b"\r\n\r\n")
            size = int(await client.reader.readline(), 16)
            first = await client.reader.readexactly(size)
        go_on.set()
        await client.read_all()
    assert first == (TEXT * 30).replace(b"their-name", b"m")


@pytest.mark.parametrize(
    ("fields", "billed"),
    [
        # 20 bytes are 7 tokens of 3 bytes.
        ({}, 7),
        ({"usage": None}, 7),
        ({"usage": {}}, 7),
        ({"usage": {"prompt_tokens": 4, "completion_tokens": None}}, 7),
        ({"usage": {"prompt_tokens": 4.0, "completion_tokens": 2.0}}, 7),
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": []}}, 2),
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": "1"}}}, 2),
    ],
)
async def test_a_whole_answer_is_delivered_and_billed_whatever_its_usage_says(
    tmp_path: Path, valkey: ValkeyProcess, fields: dict[str, Any], billed: int
) -> None:
    async with gateway_before(tmp_path, valkey, whole("Hello " * 3 + "ab", **fields)) as gateway:
        answer = json.loads(await ask(gateway))
        [event] = durable_events(gateway)
    assert answer["choices"][0]["message"]["content"].startswith("Hello")
    assert (event.completion_tokens, event.finish_reason, event.status) == (billed, "stop", "ok")


async def test_an_estimate_of_an_answer_is_at_most_what_was_asked_for(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with gateway_before(tmp_path, valkey, whole("Hello " * 50)) as gateway:
        await ask(gateway)
        await ask(gateway, n=2)
        assert sorted(event.completion_tokens for event in durable_events(gateway)) == [9, 18]


_PRIVATE = "model `their-name` at gpu-7.internal is overloaded"


@pytest.mark.parametrize(
    "error",
    [
        data_event(json.dumps({"error": {"message": _PRIVATE, "type": "server_error"}}).encode()),
        data_event(json.dumps({"error": _PRIVATE}).encode()),
        b"event: error\n" + data_event(json.dumps({"message": _PRIVATE}).encode()),
        data_event(json.dumps({"object": "error", "message": _PRIVATE, "code": 500}).encode()),
        event(choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}], error={"message": _PRIVATE}),
    ],
)
async def test_an_error_in_mid_stream_is_told_in_our_words(tmp_path: Path, valkey: ValkeyProcess, error: bytes) -> None:
    async with gateway_before(tmp_path, valkey, stream_of(TEXT, error)) as gateway:
        seen = await ask(gateway, stream=True)
        [billed] = durable_events(gateway)
    text, told = seen.removesuffix(b"\n\n").split(b"\n\n")
    assert text + b"\n\n" == TEXT.replace(b"their-name", b"m")
    shown = json.loads(told.removeprefix(b"data: "))["error"]
    assert set(shown) == {"message", "type", "param", "code"}
    assert (shown["type"], shown["code"]) == ("server_error", "upstream_failed")
    assert b"their-name" not in seen and b"gpu-7" not in seen
    assert (billed.status, billed.cost_nanousd) == ("error", 0)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_error_with_status_200_is_tried_elsewhere(
    tmp_path: Path, valkey: ValkeyProcess, is_stream: bool
) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        num_failed.append(await request.read())
        error = {"error": {"message": _PRIVATE, "type": "x", "code": 502}}
        return (
            await stream_of(data_event(json.dumps(error).encode()))(request) if is_stream else web.json_response(error)
        )

    num_failed: list[bytes] = []
    well = stream_of(TEXT, END, FIGURES, DONE_EVENT) if is_stream else whole(usage=USAGE)
    async with gateway_before(tmp_path, valkey, fail, well) as gateway:
        for _ in range(20):
            # Which member is asked first depends on the request's id.
            assert b"Hello" in await ask(gateway, stream=is_stream)
            if num_failed:
                break
        last = durable_events(gateway)[-1]
    assert num_failed and (last.num_attempts, last.status, last.completion_tokens) == (2, "ok", 5)


@pytest.mark.parametrize("is_left", [True, False])
async def test_a_client_that_leaves_or_does_not_read_is_no_failure_of_the_member(
    tmp_path: Path, valkey: ValkeyProcess, is_left: bool
) -> None:
    async def speak_on(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(event(choices=[{"index": 0, "delta": {"content": "x" * 65536}}]))
                num_written.append(1)
        over.set()
        return response

    num_written: list[int] = []
    over = asyncio.Event()
    async with gateway_before(tmp_path, valkey, speak_on) as gateway:
        key = await gateway.make_key()
        async with (
            gateway.client(key) as client,
            client.stream("POST", "/chat/completions", json=BODY | {"stream": True}) as reply,
        ):
            assert reply.status_code == 200
            if not is_left:
                await eventually(lambda: len(num_written) * 65536 > HIGH_WATER_BYTES)
                # As the sweep does after `stalled_s`.
                for connection in list(gateway.server.server_state.connections):
                    assert isinstance(connection, Connection)
                    if connection.num_parsed and connection.flow.write_paused:
                        connection.cut()
        async with asyncio.timeout(30):
            await over.wait()
        await eventually(lambda: gateway.services.metrics.num_in_flight == 0)
        [member] = gateway.services.registry.fleet.pools["small"].members
        assert member.is_healthy
        [family] = gateway.services.metrics.upstream_failures.collect()
        assert family.samples == []
        await eventually(lambda: durable_events(gateway))
        [billed] = durable_events(gateway)
        assert (billed.status, billed.num_attempts) == ("cancelled", 1)


async def test_an_estimated_length_refuses_no_prompt_that_the_member_takes(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    """Without the member's tokenizer only a bound is known: 40,000 bytes may be 40,000 tokens, or 7,000."""
    usage = {"prompt_tokens": 7000, "completion_tokens": 5}
    async with gateway_before(tmp_path, valkey, whole(usage=usage), context_window=32_768) as gateway:
        await ask(gateway, messages=[{"role": "user", "content": "words " * 6_667}])
        [billed] = durable_events(gateway)
    assert (billed.prompt_tokens, billed.status) == (7000, "ok")
