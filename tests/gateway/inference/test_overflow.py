"""A pool without room sends elsewhere what may leave, for as long as there is money for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from aiohttp import web

from gateway.settings import ConfigError, GatewaySettings, load_settings
from tests.support.gateways import Gateway, durable_events, make_settings, running_gateway
from tests.support.members import serving_member
from tests.support.valkey import ValkeyProcess

BODY: dict[str, Any] = {"model": "large", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 10}
DOLLAR = 10**9
GONE = "http://127.0.0.1:9"


async def answer(request: web.Request) -> web.StreamResponse:
    assert request.headers["Authorization"] == "Bearer key-of-the-provider"
    assert (await request.json())["model"] == "their-70b"
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    return web.json_response({"id": "x", "model": "their-70b", "choices": [choice], "usage": usage})


def settings_with(folder: Path, redis_url: str, url: str, *, budget_nanousd: int) -> GatewaySettings:
    overflow = {
        "url": url,
        "model": "cloud-70b",
        "model_at_provider": "their-70b",
        "api_key_env": "PROVIDER_KEY",
        "budget_nanousd_per_month": budget_nanousd,
    }
    pool = {"model": "our-70b", "context_window": 512, "members": [{"url": GONE}], "overflow": overflow}
    return make_settings(folder, redis_url, worker_key="key-of-these-members", pools={"large": pool})


@asynccontextmanager
async def gateway_with_overflow(
    tmp_path: Path, valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, *, budget_nanousd: int = DOLLAR
) -> AsyncIterator[Gateway]:
    """A pool whose only replica is gone, and a provider that bills 20 tokens at 0.001 dollars each."""
    monkeypatch.setenv("PROVIDER_KEY", "key-of-the-provider")
    async with serving_member(answer) as url:
        settings = settings_with(tmp_path, valkey.url, url, budget_nanousd=budget_nanousd)
        async with running_gateway(settings) as gateway:
            for model in ("our-70b", "cloud-70b"):
                price = {"model_id": model, "prompt_nanousd": DOLLAR // 1000, "completion_nanousd": DOLLAR // 1000}
                await gateway.post("/prices", price)
            yield gateway


async def ask(gateway: Gateway, key: str, **fields: Any) -> httpx.Response:
    async with gateway.client(key) as client:
        return await client.post("/chat/completions", json=BODY | fields)


async def test_the_provider_serves_under_its_own_name_and_price(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_with_overflow(tmp_path, own_valkey, monkeypatch) as gateway:
        key = await gateway.make_key(tier="enterprise")
        reply = await ask(gateway, key)
        assert reply.status_code == 200, reply.text
        told = [reply.headers[f"x-tiergate-{name}"] for name in ("model", "pool", "route")]
        assert told == ["cloud-70b", "large.overflow", "unavailable"]
        assert reply.json()["model"] == "cloud-70b"
        [event] = durable_events(gateway)
        assert (event.pool, event.cost_nanousd) == ("large.overflow", 20 * DOLLAR // 1000)
        async with gateway.client(key) as client:
            listed = [card["id"] for card in (await client.get("/models")).json()["data"]]
            assert "cloud-70b" not in listed and "large.overflow" not in listed
            assert (await ask(gateway, key, model="cloud-70b")).status_code == 404


async def test_tenants_that_stay_inside_and_best_effort_ones_are_not_sent_there(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_with_overflow(tmp_path, own_valkey, monkeypatch) as gateway:
        tenant = await gateway.post("/tenants", {"name": uuid4().hex, "tier": "enterprise", "is_local_only": True})
        made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]})
        assert tenant["is_local_only"] is True
        for key in (made["key"], await gateway.make_key(tier="free")):
            assert (await ask(gateway, key)).status_code == 503
        changed = await gateway.admin.patch(f"/tenants/{tenant['id']}", json={"is_local_only": False})
        assert changed.json()["is_local_only"] is False
        assert (await ask(gateway, made["key"])).status_code == 200


async def test_it_ends_with_its_budget(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs 0.02 dollars; what its prompt is reserved with is a little more."""
    async with gateway_with_overflow(tmp_path, own_valkey, monkeypatch, budget_nanousd=DOLLAR // 5) as gateway:
        key = await gateway.make_key(tier="enterprise")
        statuses = [(await ask(gateway, key)).status_code for _ in range(12)]
        served = statuses.count(200)
        assert 3 <= served <= 10
        assert statuses == [200] * served + [503] * (12 - served)
        assert sum(event.cost_nanousd for event in durable_events(gateway)) <= DOLLAR // 5


def test_a_bad_overflow_stops_the_start_by_name(tmp_path: Path) -> None:
    for overflow, fault in (
        ('{ url = "http://x", model = "m" }', "budget_nanousd_per_month"),
        ('{ url = "x", model = "m", budget_nanousd_per_month = 1 }', "url"),
        ('{ url = "http://x", model = "m", budget_nanousd_per_month = 1, api_key_env = "NOT_SET_X" }', "NOT_SET_X"),
    ):
        config = tmp_path / "tiergate.toml"
        config.write_text(f'[pools.large]\nmodel = "a"\ncontext_window = 9\noverflow = {overflow}\n')
        with pytest.raises(ConfigError, match=fault):
            load_settings(config, key_pepper="p" * 16)
