"""What was made can be removed, and what was billed stays."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from gateway.resources import open_services
from gateway.settings import ConfigError, PoolConfig
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


def message(reply: httpx.Response) -> str:
    assert reply.status_code == 409, reply.text
    return str(reply.json()["error"]["message"])


async def audited(gateway: Gateway) -> list[tuple[str, str]]:
    entries = (await gateway.admin.get("/audit", params={"limit": 1000})).json()["data"]
    return [(entry["action"], entry["object_id"]) for entry in entries]


async def test_a_deleted_model_leaves_its_price_and_frees_its_names(gateway: Gateway) -> None:
    model = {"id": "meta/m-7b", "pool": "small", "context_window": 512}
    await gateway.post("/models", model)
    price = await gateway.post("/prices", {"model_id": "meta/m-7b", "prompt_nanousd": 1, "completion_nanousd": 2})
    assert (await gateway.admin.delete("/models/meta/m-7b")).status_code == 204
    assert (await gateway.admin.get("/models")).json()["data"] == []
    assert [each["version"] for each in (await gateway.admin.get("/prices")).json()["data"]] == [price["version"]]
    async with gateway.client(await gateway.make_key()) as client:
        assert {card["id"] for card in (await client.get("/models")).json()["data"]} <= {"auto"}
    assert ("model.delete", "meta/m-7b") in await audited(gateway)
    await gateway.post("/models", {"id": "other", "pool": "small", "context_window": 512})
    assert (await gateway.admin.delete("/models/meta/m-7b")).status_code == 404


async def test_a_model_stays_while_adapters_or_tiers_name_it(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "legal", "context_window": 512})
    adapter = await gateway.post("/adapters", {"name": "pirate", "variants": {"m-7b": "p"}})
    await gateway.admin.patch("/tiers/free", json={"allowed_pools": ["legal"]})
    assert "'pirate'" in message(await gateway.admin.delete("/models/m-7b"))
    await gateway.admin.delete(f"/adapters/{adapter['id']}")
    assert "'free'" in message(await gateway.admin.delete("/models/m-7b"))
    await gateway.admin.patch("/tiers/free", json={"allowed_pools": None})
    assert (await gateway.admin.delete("/models/m-7b")).status_code == 204


async def test_a_model_keeps_its_pool_while_tiers_name_it(gateway: Gateway) -> None:
    model = {"id": "m-7b", "pool": "blue", "context_window": 512}
    await gateway.post("/models", model)
    await gateway.admin.patch("/tiers/free", json={"allowed_pools": ["blue"]})
    assert "'free'" in message(await gateway.admin.post("/models", json=model | {"pool": "green"}))
    # What else it says of itself may change.
    await gateway.post("/models", model | {"context_window": 1024})
    await gateway.admin.patch("/tiers/free", json={"allowed_pools": None})
    assert (await gateway.post("/models", model | {"pool": "green"}))["pool"] == "green"


async def test_a_configured_model_says_where_it_is_declared(tmp_path: Path, valkey: ValkeyProcess) -> None:
    pools = {"legal": PoolConfig(model="m-7b", context_window=512)}
    async with running_gateway(make_settings(tmp_path, valkey.url, pools=pools)) as gateway:
        assert "[pools.legal]" in message(await gateway.admin.delete("/models/m-7b"))


async def test_a_configured_model_with_anothers_name_stops_the_start(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(tmp_path, valkey.url)
    async with running_gateway(settings) as gateway:
        await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
        await gateway.post("/adapters", {"name": "pirate", "variants": {"m-7b": "p"}})
    url = f"sqlite+aiosqlite:///{settings.data_dir / 'tiergate.db'}"
    pools = {"legal": PoolConfig(model="pirate", context_window=512)}
    again = make_settings(tmp_path, valkey.url, pools=pools, database_url=url)
    with pytest.raises(ConfigError, match="'pirate' is the name of an adapter"):
        async with open_services(again, is_draining=lambda: False):
            raise AssertionError("it started")


async def test_a_deleted_tenants_keys_and_adapters_end_and_its_record_stays(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = f"/tenants/{tenant['id']}"
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k"})
    await gateway.post("/adapters", {"name": "voice", "variants": {"m-7b": "v"}, "tenant_id": tenant["id"]})
    hook = {"tenant_id": tenant["id"], "url": "https://example.com/hook", "events": ["budget.80"]}
    await gateway.post("/webhooks", hook)
    assert (await gateway.admin.delete(path)).status_code == 204
    assert (await gateway.admin.get("/webhooks")).json()["data"] == []
    async with gateway.client(made["key"]) as client:
        assert (await client.get("/models")).status_code == 401
    assert (await gateway.admin.get(path)).json()["deleted_at"] is not None
    names = [each["name"] for each in (await gateway.admin.get("/tenants")).json()["data"]]
    assert names == ["platform"]
    shown = (await gateway.admin.get("/tenants", params={"with_deleted": True})).json()["data"]
    assert [each["name"] for each in shown] == ["platform", "acme"]
    for reply in (
        await gateway.admin.delete(path),
        await gateway.admin.patch(path, json={"tier": "free"}),
        await gateway.admin.post("/keys", json={"tenant_id": tenant["id"], "name": "k"}),
    ):
        assert reply.status_code == 404
    assert (await gateway.post("/tenants", {"name": "acme", "tier": "pro"}))["id"] != tenant["id"]
    await gateway.post("/models", {"id": "voice", "pool": "voice", "context_window": 512})
    assert ("tenant.delete", tenant["id"]) in await audited(gateway)


async def test_a_price_can_be_deleted_until_it_comes_into_force(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    price = {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 1}
    past = await gateway.post("/prices", price)
    soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    near = await gateway.post("/prices", {**price, "valid_from": soon})
    future = await gateway.post("/prices", {**price, "valid_from": "2099-01-01T00:00:00Z"})
    for kept in (past, near):
        assert "add a new one" in message(await gateway.admin.delete(f"/prices/{kept['version']}"))
    assert (await gateway.admin.delete(f"/prices/{future['version']}")).status_code == 204
    left = {each["version"] for each in (await gateway.admin.get("/prices")).json()["data"]}
    assert left == {past["version"], near["version"]}
    assert (await gateway.admin.delete("/prices/none")).status_code == 404
    assert ("price.delete", future["version"]) in await audited(gateway)


async def test_a_tenants_administrator_removes_none_of_these(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["tenant-admin"]})
    async with gateway.client(made["key"]) as client:
        for path in (f"/tenants/{tenant['id']}", "/models/m-7b", "/prices/1"):
            assert (await client.delete(f"{gateway.origin}/admin/v1{path}")).status_code == 403
