"""Answers from the cache: what is given again, to whom, at what price, and what never is."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from aiohttp import web

from tests.support.gateways import Gateway, durable_events, make_settings, running_gateway
from tests.support.members import pools, serving_member
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

PATH = "/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How tall is the Eiffel Tower?"}]
BODY: dict[str, Any] = {"model": "small", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
EXACT = {"mode": "exact", "is_default": True}
ON = {"X-Tiergate-Cache": "on"}


async def customer(gateway: Gateway, **policy: Any) -> tuple[str, str]:
    """The key and the id of a new tenant with this policy."""
    key = await gateway.make_key()
    found = (await gateway.admin.get("/tenants", params={"limit": 1000})).json()["data"]
    tenant_id = max(found, key=lambda each: each["created_at"])["id"]
    if policy:
        await choose(gateway, tenant_id, **policy)
    return key, tenant_id


async def choose(gateway: Gateway, tenant_id: str, **policy: Any) -> None:
    reply = await gateway.admin.patch(f"/tenants/{tenant_id}/cache", json=policy)
    assert reply.status_code == 200, reply.text


async def outcomes(client: httpx.AsyncClient, *requests: tuple[dict[str, Any], dict[str, str]]) -> list[str | None]:
    """Of each: what the header says."""
    replies = [await client.post(PATH, json=BODY | fields, headers=headers) for fields, headers in requests]
    assert {reply.status_code for reply in replies} == {200}, [reply.text for reply in replies]
    return [reply.headers.get("x-tiergate-cache") for reply in replies]


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True}, {"n": 3}, {"stream": True, "stream_options": {"include_usage": True}}]
)
async def test_the_second_gets_the_bytes_of_the_first_without_a_worker(
    gateway: Gateway, workers: list[WorkerProcess], fields: dict[str, Any]
) -> None:
    key, _ = await customer(gateway, **EXACT)
    async with gateway.client(key) as client:
        first = await client.post(PATH, json=BODY | fields | {"user": "ada"})
        computed = workers[0].load()["prompt_tokens_total"]
        again = await client.post(PATH, json=BODY | fields | {"user": "bob"})
    assert again.content == first.content and again.headers["content-type"] == first.headers["content-type"]
    assert (first.headers["x-tiergate-cache"], again.headers["x-tiergate-cache"]) == ("miss", "hit")
    assert "age" not in first.headers and int(again.headers["age"]) >= 0
    assert again.headers["x-tiergate-model"] == first.headers["x-tiergate-model"]
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    remaining = [int(reply.headers["x-ratelimit-remaining-tokens"]) for reply in (first, again)]
    assert remaining[1] < remaining[0], "limits count it"
    assert workers[0].load()["prompt_tokens_total"] == computed
    computed_event, event = durable_events(gateway)
    assert (computed_event.cached_answer, event.cached_answer) == (False, True)
    assert (event.status, event.user_id, event.worker_id, event.route_reason) == ("ok", "bob", None, "cached")
    for name in ("pool", "model_version", "prompt_tokens", "completion_tokens", "finish_reason"):
        assert getattr(event, name) == getattr(computed_event, name), name
    # Cached prompts cost 100 there, as others do; the output is free unless the price says otherwise.
    assert event.cost_nanousd == event.prompt_tokens * 100 == sum(line.amount_nanousd for line in event.price_lines)


async def test_the_price_tells_what_the_output_costs(gateway: Gateway) -> None:
    price = {"prompt_nanousd": 100, "completion_nanousd": 400, "cached_prompt_nanousd": 10}
    await gateway.post("/prices", {"model_id": "tiny-small", **price, "cached_answer_basis_points": 2500})
    key, _ = await customer(gateway, **EXACT)
    async with gateway.client(key) as client:
        assert await outcomes(client, ({}, {}), ({}, {})) == ["miss", "hit"]
    event = durable_events(gateway)[1]
    assert event.cost_nanousd == event.prompt_tokens * 10 + event.completion_tokens * 100
    assert [line.kind for line in event.price_lines] == ["cached_input", "output", "cached_answer"]


async def test_tenant_and_request_decide(gateway: Gateway) -> None:
    key, tenant_id = await customer(gateway)
    off, no_store, no_cache = {"X-Tiergate-Cache": "off"}, {"Cache-Control": "no-store"}, {"Cache-Control": "no-cache"}
    async with gateway.client(key) as client:
        assert await outcomes(client, ({}, {}), ({}, ON)) == [None, None]
        await choose(gateway, tenant_id, mode="exact")
        assert await outcomes(client, ({}, {}), ({}, ON), ({}, ON)) == [None, "miss", "hit"]
        await choose(gateway, tenant_id, is_default=True)
        assert await outcomes(client, ({}, {}), ({}, off), ({}, no_store), ({}, no_cache)) == [
            *("hit", None, None),
            "miss",
        ]
        sampled = {"temperature": 0.7, "seed": 1}
        assert await outcomes(client, (sampled, {}), ({"temperature": None}, {})) == [None, None]
        await choose(gateway, tenant_id, takes_sampled=True)
        assert await outcomes(client, (sampled, {}), (sampled, {})) == ["miss", "hit"]
        await choose(gateway, tenant_id, mode="off")
        assert await outcomes(client, ({}, {})) == [None]
        wrong = await client.post(PATH, json=BODY, headers={"X-Tiergate-Cache": "always"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "X-Tiergate-Cache")


async def test_another_request_gets_another_answer(gateway: Gateway) -> None:
    key, _ = await customer(gateway, **EXACT)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    others: list[dict[str, Any]] = [
        *({"model": "large"}, {"model": "pirate"}, {"max_tokens": 7}, {"stop": "x"}, {"seed": 5}, {"top_p": 0.5}),
        *({"messages": MESSAGES[1:]}, {"stream": True}, {"tools": [tool]}, {"presence_penalty": 1}, {"logprobs": True}),
    ]
    async with gateway.client(key) as client:
        for fields in ({}, *others):
            assert await outcomes(client, (fields, {}), (fields, {})) == ["miss", "hit"], fields
    stranger, _ = await customer(gateway, **EXACT)
    async with gateway.client(stranger) as client:
        assert await outcomes(client, ({}, {})) == ["miss"]


async def test_an_adapter_that_was_made_anew_answers_itself(gateway: Gateway) -> None:
    key, _ = await customer(gateway, **EXACT)
    asked = {"model": "pirate"}
    async with gateway.client(key) as client:
        assert await outcomes(client, (asked, {}), (asked, {})) == ["miss", "hit"]
        [adapter] = (await gateway.admin.get("/adapters", params={"name": "pirate"})).json()["data"]
        assert (await gateway.admin.delete(f"/adapters/{adapter['id']}")).status_code == 204
        await gateway.post("/adapters", {"name": "pirate", "variants": adapter["variants"]})
        assert await outcomes(client, (asked, {})) == ["miss"]


async def test_what_is_kept_is_sealed_ends_and_goes_with_its_tenant(
    gateway: Gateway, fleet_valkey: ValkeyProcess
) -> None:
    key, tenant_id = await customer(gateway, mode="semantic", is_default=True, ttl_s=600)
    async with gateway.client(key) as client:
        answer = await client.post(PATH, json=BODY)
        assert await outcomes(client, ({}, {})) == ["hit"]
        with redis.Redis.from_url(fleet_valkey.url) as server:
            kept = list(server.scan_iter(f"tiergate:{{{tenant_id}}}:*"))
            [name] = [each for each in kept if b":cache:" in each]
            [near] = [each for each in kept if b":near:" in each]
            value = server.get(name)
            assert isinstance(value, bytes) and b"choices" not in value and b"Eiffel" not in value
            assert 0 < int(server.ttl(name)) <= 600 and 0 < int(server.ttl(near)) <= 600
            assert (await gateway.admin.delete(f"/tenants/{tenant_id}/cache")).status_code == 204
            assert not server.exists(name, near)
            assert await outcomes(client, ({}, {}), ({}, {})) == ["miss", "hit"]
            assert (await gateway.admin.delete(f"/tenants/{tenant_id}")).status_code == 204
            assert not server.exists(name, near)
    assert answer.status_code == 200
    rows = (await gateway.admin.get("/audit", params={"tenant_id": tenant_id})).json()["data"]
    assert [row["detail"] for row in rows if row["action"] == "cache.purge"] == [{"num_answers": 1}]


async def test_a_session_keeps_the_turn_of_an_answer_from_the_cache(gateway: Gateway) -> None:
    key, _ = await customer(gateway, **EXACT)
    async with gateway.client(key) as client:
        for number, outcome in enumerate(["miss", "hit"]):
            for stream in (False, True):
                headers = {"X-Session-Id": f"s-{number}-{stream}"}
                assert await outcomes(client, ({"stream": stream}, headers)) == [outcome]
                kept = (await client.get(f"/sessions/{headers['X-Session-Id']}")).json()["messages"]
                assert [message["role"] for message in kept] == ["system", "user", "assistant"]


async def test_words_that_mean_the_same_get_the_answer(gateway: Gateway) -> None:
    """What counts as the same is the threshold's business, set here between what the model finds alike and not."""
    key, tenant_id = await customer(gateway)
    texts = ["How tall is the Eiffel Tower?", "How tall is the Eiffel Tower??", "Write a song of snow and iron, ahoy"]
    async with gateway.client(key) as client:
        found = (await client.post("/embeddings", json={"model": "large", "input": texts})).json()["data"]
        first, alike, other = (each["embedding"] for each in found)
        near, far = (sum(a * b for a, b in zip(first, each, strict=True)) for each in (alike, other))
        assert near - far > 0.01
        await choose(gateway, tenant_id, mode="semantic", is_default=True, min_similarity=max(0.5, (near + far) / 2))

        def asked(text: str, system: str = "Be brief.") -> tuple[dict[str, Any], dict[str, str]]:
            return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}, {}

        replies = [await client.post(PATH, json=BODY | asked(text)[0]) for text in texts]
        assert [reply.headers["x-tiergate-cache"] for reply in replies] == ["miss", "hit", "miss"]
        assert replies[0].content == replies[1].content
        # All but the last message must be the same.
        assert await outcomes(client, asked(texts[1], "Be long."), asked(texts[0], "Be long.")) == ["miss", "hit"]
    embeddings = [event for event in durable_events(gateway) if event.endpoint == "/v1/embeddings"]
    assert {event.status for event in embeddings} == {"ok"} and len(embeddings) == 1 + 5


async def test_what_broke_off_is_not_kept(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        chunk = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        await reply.write(chunk + b'"delta":{"role":"assistant","content":"half"},"finish_reason":null}]}\n\n')
        return reply

    async with serving_member(break_off) as url:
        settings = make_settings(tmp_path, valkey.url, pools=pools({"url": url, "engine": "openai"}))
        async with running_gateway(settings) as gateway:
            key, tenant_id = await customer(gateway, **EXACT)
            async with gateway.client(key) as client:
                for _ in range(2):
                    reply = await client.post(PATH, json=BODY | {"stream": True})
                    assert reply.headers["x-tiergate-cache"] == "miss" and b"error" in reply.content
    with redis.Redis.from_url(valkey.url) as server:
        assert list(server.scan_iter(f"tiergate:{{{tenant_id}}}:cache:*")) == []


async def test_without_redis_there_is_no_hit_and_no_failure(tmp_path: Path) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    async with serving_member(answer) as url:
        listed = pools({"url": url, "engine": "openai"})
        async with running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9", pools=listed)) as gateway:
            key, tenant_id = await customer(gateway, **EXACT)
            async with gateway.client(key) as client:
                assert await outcomes(client, ({}, {}), ({}, {})) == ["miss", "miss"]
            assert (await gateway.admin.delete(f"/tenants/{tenant_id}/cache")).status_code == 503


async def test_semantic_needs_a_model_that_compares(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, valkey.url)) as gateway:
        tenant = await gateway.post("/tenants", {"name": "t", "tier": "free"})
        refused = await gateway.admin.patch(f"/tenants/{tenant['id']}/cache", json={"mode": "semantic"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mode")


async def test_a_refusal_has_nothing_of_the_cache(gateway: Gateway) -> None:
    key, tenant_id = await customer(gateway, **EXACT)
    async with gateway.client(key) as client:
        assert await outcomes(client, ({}, {}), ({}, {})) == ["miss", "hit"]
        limits = {"limits": {"requests_per_minute": 1}}
        assert (await gateway.admin.patch(f"/tenants/{tenant_id}", json=limits)).is_success
        refused = await client.post(PATH, json=BODY)
    assert (refused.status_code, refused.headers.get("x-tiergate-cache")) == (429, None)
