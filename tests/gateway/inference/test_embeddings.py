"""Embeddings from real workers through a real gateway: the worker's own vectors, admitted, billed, never moved."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from tests.support.gateways import WORKER_KEY, Gateway, durable_events, make_settings, running_gateway
from tests.support.members import pools, serving_member
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

TEXTS = ["The quick brown fox", "Grüße aus Köln"]


async def test_the_official_client_gets_the_workers_vectors(
    gateway: Gateway, key: str, workers: list[WorkerProcess]
) -> None:
    headers = {"Authorization": f"Bearer {WORKER_KEY}"}
    body = {"model": "tiny-large", "input": TEXTS}
    async with httpx.AsyncClient(base_url=workers[1].url, headers=headers, timeout=30) as worker:
        direct = (await worker.post("/v1/embeddings", json=body)).json()
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
        for model in ("large", "tiny-large"):
            raw = await client.embeddings.with_raw_response.create(model=model, input=TEXTS, user="end-user-7")
            answer = raw.parse()
            for ours, theirs in zip(answer.data, direct["data"], strict=True):
                assert ours.embedding == pytest.approx(theirs["embedding"], abs=1e-6)
            assert (raw.headers["x-tiergate-pool"], raw.headers["x-tiergate-route"]) == ("large", "requested")
            assert "x-tiergate-accounting" not in raw.headers
            assert int(raw.headers["x-ratelimit-remaining-tokens"]) >= 0
    billed = durable_events(gateway)
    for event in billed:
        assert (event.status, event.pool, event.user_id) == ("ok", "large", "end-user-7")
        assert (event.prompt_tokens, event.completion_tokens) == (direct["usage"]["prompt_tokens"], 0)
        assert event.finish_reason == "stop"
    # The second time the worker may have found some of it in its cache.
    assert billed[0].cost_nanousd == billed[0].prompt_tokens * 100
    assert billed[0].request_id != billed[1].request_id


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "auto"}, 400, "model"),
        ({"model": "nobody"}, 404, "model"),
        # Trained for both models.
        ({"model": "pirate"}, 400, "model"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": [5] * 513}, 400, "input"),
        ({"input": ["ok", "word " * 1000]}, 400, "input"),
        ({"input": [99999]}, 400, "input"),
        ({"dimensions": 7}, 400, "dimensions"),
        ({"encoding": "float"}, 400, "encoding"),
    ],
)
async def test_a_bad_request_names_the_field_and_costs_nothing(
    gateway: Gateway, key: str, fields: dict[str, Any], status: int, param: str
) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/embeddings", json={"model": "small", "input": "Hi"} | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text
    assert [event.cost_nanousd for event in durable_events(gateway)] in ([], [0])


async def test_an_adapter_of_one_model_makes_that_models_embeddings(
    gateway: Gateway, key: str, workers: list[WorkerProcess]
) -> None:
    await gateway.post("/adapters", {"name": "voice", "variants": {"tiny-large": "pirate"}})
    await gateway.services.catalog.reload()
    headers = {"Authorization": f"Bearer {WORKER_KEY}"}
    async with (
        httpx.AsyncClient(base_url=workers[1].url, headers=headers, timeout=30) as worker,
        gateway.client(key) as client,
    ):
        direct = (await worker.post("/v1/embeddings", json={"model": "pirate", "input": TEXTS})).json()
        base = (await worker.post("/v1/embeddings", json={"model": "tiny-large", "input": TEXTS})).json()
        reply = await client.post("/embeddings", json={"model": "voice", "input": TEXTS})
    assert reply.status_code == 200, reply.text
    for ours, theirs, plain in zip(reply.json()["data"], direct["data"], base["data"], strict=True):
        assert ours["embedding"] == pytest.approx(theirs["embedding"], abs=1e-6)
        assert ours["embedding"] != pytest.approx(plain["embedding"], abs=1e-6)
    assert (reply.headers["x-tiergate-adapter"], reply.headers["x-tiergate-pool"]) == ("voice", "large")
    [billed] = durable_events(gateway)
    assert (billed.status, billed.requested_model, billed.pool) == ("ok", "voice", "large")
    assert billed.adapter_id is not None


async def test_a_text_may_fill_the_window(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/embeddings", json={"model": "small", "input": [5] * 512})
    assert reply.json()["usage"] == {"prompt_tokens": 512, "total_tokens": 512}


async def test_without_a_key_there_are_none_and_the_method_is_told(gateway: Gateway, key: str) -> None:
    async with gateway.client("tg-nobody-" + "x" * 40) as client:
        assert (await client.post("/embeddings", json={"model": "small", "input": "Hi"})).status_code == 401
    async with gateway.client(key) as client:
        assert (await client.get("/embeddings")).status_code == 405


async def test_limits_hold_for_embeddings_too(gateway: Gateway) -> None:
    reply = await gateway.admin.patch("/tiers/free", json={"tokens_per_minute": 100})
    assert reply.status_code == 200, reply.text
    async with gateway.client(await gateway.make_key(tier="free")) as client:
        first = await client.post("/embeddings", json={"model": "small", "input": [5] * 60})
        second = await client.post("/embeddings", json={"model": "small", "input": [6] * 60})
    assert first.status_code == 200
    assert (second.status_code, second.json()["error"]["code"]) == (429, "tokens_per_minute")


async def test_a_foreign_member_gets_openais_fields_and_is_billed_by_its_figures(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.update(await request.json())
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        data = [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]
        return web.json_response({"object": "list", "data": data, "model": "their-name", "usage": usage})

    async with (
        serving_member(answer) as url,
        running_gateway(
            make_settings(tmp_path, valkey.url, pools=pools({"url": url, "engine": "openai", "model": "their-name"}))
        ) as gateway,
        gateway.client(await gateway.make_key()) as client,
    ):
        body = {"model": "small", "input": "Hi", "dimensions": 2, "user": "u", "priority": 0, "cache_salt": "x"}
        reply = await client.post("/embeddings", json=body)
        [billed] = durable_events(gateway)
    assert seen == {"model": "their-name", "input": "Hi", "dimensions": 2, "encoding_format": "float"}
    assert (reply.status_code, reply.json()["model"]) == (200, "m")
    assert (billed.prompt_tokens, billed.completion_tokens, billed.status) == (3, 0, "ok")
