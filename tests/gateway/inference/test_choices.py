"""Several answers to one request: reserved, passed on and billed as what they are together."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
from aiohttp import web

from tests.gateway.inference.test_endings import LONG
from tests.gateway.inference.test_limits import limit
from tests.support.gateways import Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.members import pools, serving_member
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

HI: Any = [{"role": "user", "content": "Hi!"}]
SEEDED: dict[str, Any] = {"temperature": 2, "seed": 3, "max_tokens": 12}


async def test_choices_and_logprobs_pass_through_and_each_token_is_billed(gateway: Gateway, key: str) -> None:
    fields: dict[str, Any] = {"model": "small", "messages": HI, "n": 3, "logprobs": True, "top_logprobs": 2} | SEEDED
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        whole = await client.chat.completions.create(**fields)
        stream = await client.chat.completions.create(**fields, stream=True)
        texts, tokens = ["", "", ""], [0, 0, 0]
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                tokens[choice.index] += len(choice.logprobs.content or ()) if choice.logprobs else 0
    assert texts == [choice.message.content for choice in whole.choices]
    assert tokens == [len(choice.logprobs.content or ()) for choice in whole.choices if choice.logprobs]
    assert whole.usage is not None
    for event in durable_events(gateway):
        assert (event.status, event.prompt_tokens) == ("ok", whole.usage.prompt_tokens)
        assert event.completion_tokens == whole.usage.completion_tokens >= sum(tokens)
        assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400
    assert len(durable_events(gateway)) == 2


async def test_several_prompts_are_billed_once_each(gateway: Gateway, key: str) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        made = await client.completions.create(model="small", prompt=["Paris", "The lazy dog"], n=2, **SEEDED)
        scored = await client.completions.create(model="small", prompt="Paris", max_tokens=0, echo=True, logprobs=1)
    assert len(made.choices) == 4
    assert scored.choices[0].text == "Paris" and scored.choices[0].logprobs is not None
    for event, answer in zip(durable_events(gateway), (made, scored), strict=True):
        assert answer.usage is not None
        billed = (event.prompt_tokens, event.completion_tokens)
        assert billed == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


async def test_what_is_reserved_covers_every_choice(gateway: Gateway) -> None:
    key = await limit(gateway, tokens_per_minute=450)
    body = {"model": "small", "messages": HI, "max_tokens": 100}
    async with gateway.client(key) as client:
        refused = await client.post("/chat/completions", json=body | {"n": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute")
        assert (await client.post("/chat/completions", json=body | {"n": 3})).status_code == 200
        planned = (await client.post("/route", json=body | {"n": 3})).json()
    assert planned["max_cost_nanousd"] == planned["prompt_tokens"] * 100 + 3 * 100 * 400


async def test_leaving_bills_exactly_what_all_choices_were_sent(gateway: Gateway, workers: list[WorkerProcess]) -> None:
    """Every token of the tiny models makes some text, or is part of a character that is never finished."""
    key, num_chars = await gateway.make_key(), [0, 0, 0]
    large = workers[1]
    before = large.load()
    fields = LONG | {"n": 3, "seed": 1, "logprobs": True}
    num_tokens = 0
    async with gateway.client(key) as client, client.stream("POST", "/chat/completions", json=fields) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                num_chars[choice["index"]] += len(choice["delta"].get("content") or "")
                num_tokens += len((choice["logprobs"] or {}).get("content", ()))
            if min(num_chars) >= 5:
                break
    await eventually(lambda: len(durable_events(gateway)) == 1)
    [event] = durable_events(gateway)
    assert (event.status, event.finish_reason) == ("cancelled", None)
    assert num_tokens <= event.completion_tokens < 3 * 400
    await eventually(lambda: large.load()["num_running"] == 0)
    after = large.load()
    generated = after["completion_tokens_total"] - before["completion_tokens_total"]
    assert event.completion_tokens <= generated
    assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400


async def test_a_foreign_member_is_asked_for_the_same(tmp_path: Path, valkey: ValkeyProcess) -> None:
    seen: list[Any] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        choices = [
            {"index": i, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
            for i in range(2)
        ]
        usage = {"prompt_tokens": 7, "completion_tokens": 10, "total_tokens": 17}
        return web.json_response({"id": "x", "model": "their-name", "choices": choices, "usage": usage})

    member = {"engine": "openai", "model": "their-name"}
    async with (
        serving_member(remember) as url,
        running_gateway(make_settings(tmp_path, valkey.url, pools=pools(member | {"url": url}))) as gateway,
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=await gateway.make_key(), max_retries=0) as client,
    ):
        asked: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 3, "max_tokens": 9}
        made = await asyncio.wait_for(client.chat.completions.create(model="small", messages=HI, **asked), 20)
        [event] = durable_events(gateway)
    assert seen == [asked | {"model": "their-name", "messages": HI}]
    assert len(made.choices) == 2
    assert (event.prompt_tokens, event.completion_tokens) == (7, 10)
