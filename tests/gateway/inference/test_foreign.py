"""A member that is somebody else's server gets only what OpenAI's API knows, and is billed by its own figures."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from protocol.accounting import DONE_EVENT, data_event
from tests.support.gateways import Gateway, durable_events, make_settings, running_gateway
from tests.support.members import pools, serving_member, stream_of
from tests.support.valkey import ValkeyProcess

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def event(**fields: Any) -> bytes:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-name", **fields}
    return data_event(json.dumps(chunk).encode())


TEXT = event(choices=[{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}])
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
FIGURES = event(choices=[], usage=USAGE)


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
