"""OpenAI's service tiers: which class a request gets, and what its answer tells."""

from typing import Any

import openai
import pytest
from msgspec.structs import replace

from gateway.inference.service_tier import terms_of
from protocol.messages import UserMessage
from protocol.requests import ChatCompletionRequest
from tests.support.gateways import Gateway, durable_events
from tests.support.tiers import make_tier

HI: Any = [{"role": "user", "content": "Hi!"}]


@pytest.mark.parametrize(
    ("wanted", "used"), [("auto", "default"), ("flex", "flex"), ("priority", "priority"), ("fast", "priority")]
)
async def test_the_answer_tells_what_was_used(gateway: Gateway, key: str, wanted: Any, used: str) -> None:
    fields: dict[str, Any] = {"model": "small", "messages": HI, "max_tokens": 3, "service_tier": wanted}
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        whole = await client.chat.completions.create(**fields)
        streamed = [chunk async for chunk in await client.chat.completions.create(**fields, stream=True)]
    assert whole.service_tier == used
    assert {chunk.service_tier for chunk in streamed} == {used}
    assert all(event.status == "ok" for event in durable_events(gateway))


async def test_an_answer_tells_no_tier_unasked(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/chat/completions", json={"model": "small", "messages": HI, "max_tokens": 3})
    assert "service_tier" not in reply.json()


async def test_priority_is_refused_where_the_tier_does_not_have_it(gateway: Gateway) -> None:
    async with gateway.client(await gateway.make_key(tier="free")) as client:
        body = {"model": "small", "messages": HI, "max_tokens": 3}
        reply = await client.post("/chat/completions", json=body | {"service_tier": "priority"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "service_tier")
        flexible = await client.post("/chat/completions", json=body | {"service_tier": "flex"})
        assert (flexible.status_code, flexible.json()["service_tier"]) == (200, "flex")


async def test_flex_has_no_part_in_the_discount_of_batches(gateway: Gateway, key: str) -> None:
    await gateway.post("/prices/discounts", {"basis_points": 5000})
    async with gateway.client(key) as client:
        body = {"model": "small", "messages": HI, "max_tokens": 3, "ignore_eos": True, "service_tier": "flex"}
        assert (await client.post("/chat/completions", json=body)).status_code == 200
    (event,) = durable_events(gateway)
    assert event.cost_nanousd == 100 * event.prompt_tokens + 400 * event.completion_tokens


def test_flex_is_of_the_last_class_and_takes_no_second_replica() -> None:
    tier = make_tier(priority=0, is_hedged=True)
    request = ChatCompletionRequest(model="m", messages=[UserMessage(content="Hi")], service_tier="flex")
    flexible = terms_of(tier, request)
    assert (flexible.priority, flexible.is_best_effort, flexible.is_hedged) == (3, True, False)
    assert terms_of(tier, replace(request, service_tier="auto")) is tier


async def test_one_request_gets_up_to_128_answers(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        body = {"model": "small", "messages": HI, "max_tokens": 1, "n": 128}
        reply = await client.post("/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert [choice["index"] for choice in reply.json()["choices"]] == list(range(128))
    (event,) = durable_events(gateway)
    assert event.completion_tokens == 128
