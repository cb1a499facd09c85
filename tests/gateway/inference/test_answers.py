"""Answers of real workers through a real gateway: same text, right headers, exact bills."""

import json
from typing import Any

import msgspec
import openai
import pytest

from tests.support.gateways import Gateway, durable_events

HI = [{"role": "user", "content": "Hi!"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": HI, "max_tokens": 12, "temperature": 0} | fields


async def stream_lines(gateway: Gateway, key: str, **fields: Any) -> list[str]:
    async with (
        gateway.client(key) as client,
        client.stream("POST", "/chat/completions", json=body(stream=True, **fields)) as reply,
    ):
        assert reply.status_code == 200, await reply.aread()
        return [line async for line in reply.aiter_lines() if line]


async def test_an_answer_says_what_served_it_and_is_billed_exactly(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/chat/completions", json=body(user="end-user-7"))
    assert reply.status_code == 200, reply.text
    answer, request_id = reply.json(), reply.headers["x-request-id"]
    assert answer["id"] == f"chatcmpl-{request_id}"
    assert (reply.headers["x-tiergate-model"], reply.headers["x-tiergate-pool"]) == ("tiny-small", "small")
    assert reply.headers["x-tiergate-route"] == "requested"
    assert "x-tiergate-adapter" not in reply.headers
    assert "x-tiergate-accounting" not in reply.headers
    [event] = durable_events(gateway)
    usage = answer["usage"]
    assert (event.request_id, event.status, event.user_id) == (request_id, "ok", "end-user-7")
    assert (event.prompt_tokens, event.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert event.cost_nanousd == usage["prompt_tokens"] * 100 + usage["completion_tokens"] * 400
    assert event.worker_id is not None
    assert event.worker_compute_ms > 0
    assert (event.endpoint, event.num_attempts, event.error_code) == ("/v1/chat/completions", 1, None)
    steps = msgspec.structs.astuple(event.steps_ms)
    assert list(steps) == sorted(steps), "each step is over after the one before it"
    assert event.decision is not None
    decision = json.loads(event.decision)
    assert (decision["reason"], decision["pool"], decision["tried"]) == ("requested", "small", [event.worker_id])
    assert sum(line.amount_nanousd for line in event.price_lines) == event.cost_nanousd
    assert {line.kind: (line.quantity, line.unit_price_nanousd) for line in event.price_lines} == {
        "input": (usage["prompt_tokens"], 100),
        "output": (usage["completion_tokens"], 400),
    }


async def test_a_stream_says_the_same_and_carries_nothing_of_ours(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        whole = (await client.post("/chat/completions", json=body())).json()["choices"][0]["message"]["content"]
    lines = await stream_lines(gateway, key)
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_is_streamed_when_asked_for_and_is_what_is_billed(gateway: Gateway, key: str) -> None:
    lines = await stream_lines(gateway, key, stream_options={"include_usage": True})
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["choices"] == []
    [event] = durable_events(gateway)
    assert event.completion_tokens == last["usage"]["completion_tokens"]
    assert event.prompt_tokens == last["usage"]["prompt_tokens"]
    assert event.ttft_ms is not None


async def test_done_means_durable(gateway: Gateway, key: str) -> None:
    async with (
        gateway.client(key) as client,
        client.stream("POST", "/chat/completions", json=body(stream=True)) as reply,
    ):
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                assert [event.request_id for event in durable_events(gateway)] == [reply.headers["x-request-id"]]
                return
    pytest.fail("no [DONE]")


@pytest.mark.parametrize("model", ["auto", "small", "large", "tiny-small", "tiny-large", "pirate"])
async def test_the_official_client_gets_an_answer_for_every_kind_of_name(
    gateway: Gateway, key: str, model: str
) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        assert model in {card.id async for card in await client.models.list()}
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=HI, max_tokens=4)
        assert raw.headers.get("x-tiergate-adapter") == ("pirate" if model == "pirate" else None)
        stream = await client.chat.completions.create(model=model, messages=HI, max_tokens=4, stream=True)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


async def test_an_adapter_changes_the_answer(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        answers = [
            (await client.post("/chat/completions", json=body(model=model))).json()["choices"][0]["message"]["content"]
            for model in ("small", "pirate")
        ]
    assert answers[0] != answers[1]


async def test_text_completions_take_text_and_token_ids(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        ids = (await client.post("/tokenize", json={"model": "small", "prompt": "The quick brown"})).json()["tokens"]
        sent = {"model": "small", "max_tokens": 8, "temperature": 0}
        texts = [
            (await client.post("/completions", json=sent | {"prompt": prompt})).json()["choices"][0]["text"]
            for prompt in ("The quick brown", ids)
        ]
        back = (await client.post("/detokenize", json={"model": "small", "tokens": ids})).json()["prompt"]
    assert texts[0] == texts[1]
    assert back == "The quick brown"


async def test_a_prompt_is_counted_as_the_worker_bills_it(gateway: Gateway, key: str) -> None:
    messages = [{"role": "system", "content": "Grüße 👩‍🚀"}, {"role": "user", "content": "Why? " * 20}]
    async with gateway.client(key) as client:
        planned = (await client.post("/route", json=body(messages=messages))).json()
        answer = (await client.post("/chat/completions", json=body(messages=messages))).json()
    assert planned["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert planned["is_estimate"] is False
    assert len(durable_events(gateway)) == 1


async def test_a_client_cannot_set_its_own_priority_or_salt(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/chat/completions", json=body(priority=0, cache_salt="another tenant's"))
    assert reply.status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_adapters_name_at_the_workers_is_in_no_answer(gateway: Gateway, key: str, is_stream: bool) -> None:
    await gateway.post("/adapters", {"name": "voice", "variants": {"tiny-small": "pirate"}})
    async with gateway.client(key) as client:
        reply = await client.post("/chat/completions", json=body(model="voice", stream=is_stream))
        assert reply.status_code == 200
        assert "pirate" not in reply.text
        assert '"model":"voice"' in reply.text
        embedded = await client.post("/embeddings", json={"model": "voice", "input": "x"})
        assert (embedded.status_code, embedded.json()["model"]) == (200, "voice")
