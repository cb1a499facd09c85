"""A stale edit is refused, and changes nothing, on every object that can be edited."""

import asyncio
from typing import Any

import pytest

from tests.support.gateways import Gateway

TOOL = {"name": "t", "description": "d", "parameters": {"type": "object"}, "url": "https://example.com/"}


async def edited(gateway: Gateway, kind: str) -> tuple[str, str, dict[str, Any]]:
    """Method, path and body of an edit."""
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    if kind == "tenants":
        return "PATCH", f"/tenants/{tenant['id']}", {"is_local_only": True}
    if kind == "keys":
        made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k"})
        return "PATCH", f"/keys/{made['id']}", {"name": "other"}
    if kind == "users":
        made = await gateway.post("/users", {"tenant_id": tenant["id"], "user_id": "u", "limits": {"concurrency": 2}})
        return "PATCH", f"/users/{made['id']}", {"limits": {"concurrency": 3}}
    if kind == "tools":
        made = await gateway.post("/tools", TOOL)
        return "PATCH", f"/tools/{made['id']}", {"max_rounds": 2}
    if kind == "guardrails":
        made = await gateway.post("/guardrails", {"name": "g", "url": "https://example.com/"})
        return "PATCH", f"/guardrails/{made['id']}", {"on_failure": "open"}
    if kind == "sessions":
        return "PATCH", f"/tenants/{tenant['id']}/sessions", {"overflow": "summary"}
    if kind == "cache":
        return "PATCH", f"/tenants/{tenant['id']}/cache", {"mode": "exact"}
    if kind == "billing-accounts":
        return "PUT", f"/billing-accounts/{tenant['id']}", {"tax_name": "VAT"}
    if kind == "models":
        await gateway.post("/models", {"id": "m-7b", "pool": "p", "context_window": 512})
        return "POST", "/models", {"id": "m-7b", "pool": "p", "context_window": 1024}
    return "PATCH", "/tiers/free", {"concurrency": 5}


async def shown(gateway: Gateway, path: str) -> dict[str, Any]:
    if path == "/models":
        [found] = (await gateway.admin.get(path)).json()["data"]
    else:
        found = (await gateway.admin.get(path)).json()
    return dict(found)


@pytest.mark.parametrize(
    "kind",
    ["tenants", "keys", "users", "tiers", "tools", "guardrails", "models", "sessions", "cache", "billing-accounts"],
)
async def test_a_stale_edit_is_409_and_changes_nothing(gateway: Gateway, kind: str) -> None:
    method, path, body = await edited(gateway, kind)
    read = await shown(gateway, path)
    first = await gateway.admin.request(method, path, json=body | {"version": read["version"]})
    assert first.is_success, first.text
    assert first.json()["version"] == read["version"] + 1
    stale = await gateway.admin.request(method, path, json=body | {"version": read["version"]})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_version")
    assert stale.json()["error"]["param"] == "version"
    after = await shown(gateway, path)
    assert after["version"] == read["version"] + 1
    fresh = await gateway.admin.request(method, path, json=body | {"version": after["version"]})
    assert fresh.is_success
    assert (await gateway.admin.request(method, path, json=body)).is_success


TAGGED = ["tenants", "keys", "users", "tiers", "tools", "guardrails", "sessions", "cache", "billing-accounts"]


@pytest.mark.parametrize("kind", TAGGED)
async def test_an_edit_with_an_old_etag_is_412_and_changes_nothing(gateway: Gateway, kind: str) -> None:
    method, path, body = await edited(gateway, kind)
    tag = (await gateway.admin.get(path)).headers["etag"]
    first = await gateway.admin.request(method, path, json=body, headers={"If-Match": tag})
    assert first.is_success, first.text
    assert first.headers["etag"] == f'"{first.json()["version"]}"' != tag
    stale = await gateway.admin.request(method, path, json=body, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale_version")
    assert stale.json()["error"]["param"] == "If-Match"
    assert (await gateway.admin.get(path)).headers["etag"] == first.headers["etag"]
    both = await gateway.admin.request(method, path, json=body | {"version": 99}, headers={"If-Match": tag})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "version")
    wrong = await gateway.admin.request(method, path, json=body, headers={"If-Match": "seven"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "If-Match")
    assert (await gateway.admin.request(method, path, json=body, headers={"If-Match": "*"})).is_success


@pytest.mark.parametrize("kind", ["tenants", "keys", "users", "tools", "guardrails", "models"])
async def test_what_was_changed_since_is_not_deleted(gateway: Gateway, kind: str) -> None:
    method, path, body = await edited(gateway, kind)
    old = f'"{(await shown(gateway, path))["version"]}"'
    now = (await gateway.admin.request(method, path, json=body)).json()["version"]
    target = "/models/m-7b" if kind == "models" else path
    stale = await gateway.admin.delete(target, headers={"If-Match": old})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale_version")
    assert (await shown(gateway, path))["version"] == now
    assert (await gateway.admin.delete(target, headers={"If-Match": f'"{now}"'})).status_code == 204


@pytest.mark.parametrize("kind", TAGGED)
async def test_of_edits_that_race_one_passes(gateway: Gateway, kind: str) -> None:
    method, path, body = await edited(gateway, kind)
    tag = (await gateway.admin.get(path)).headers["etag"]
    edits = [gateway.admin.request(method, path, json=body, headers={"If-Match": tag}) for _ in range(8)]
    statuses = sorted(reply.status_code for reply in await asyncio.gather(*edits))
    assert statuses == [200] + [412] * 7


async def test_lists_are_filtered(gateway: Gateway) -> None:
    one = await gateway.post("/tenants", {"name": "one", "tier": "pro"})
    two = await gateway.post("/tenants", {"name": "two", "tier": "free"})
    for tenant in (one, two):
        await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k"})
        await gateway.post("/users", {"tenant_id": tenant["id"], "user_id": "u", "limits": {}})
        await gateway.post("/tools", TOOL | {"tenant_id": tenant["id"]})
        await gateway.post("/webhooks", {"tenant_id": tenant["id"], "url": "https://example.com/", "events": ["ping"]})
        for path in ("/keys", "/users", "/tools", "/webhooks"):
            found = (await gateway.admin.get(path, params={"tenant_id": tenant["id"]})).json()["data"]
            assert [each["tenant_id"] for each in found] == [tenant["id"]], path
        [named] = (await gateway.admin.get("/tenants", params={"name": tenant["name"]})).json()["data"]
        assert named["id"] == tenant["id"]
    assert len((await gateway.admin.get("/keys", params={"name": "k"})).json()["data"]) == 2
    assert [each["name"] for each in (await gateway.admin.get("/tenants", params={"tier": "free"})).json()["data"]] == [
        "two"
    ]
    assert (await gateway.admin.get("/tools", params={"name": "none"})).json()["data"] == []
    await gateway.post("/models", {"id": "m-7b", "pool": "p", "context_window": 512})
    assert (await gateway.admin.get("/models", params={"pool": "other"})).json()["data"] == []
    await gateway.post("/prices", {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 1})
    assert len((await gateway.admin.get("/prices", params={"model_id": "m-7b"})).json()["data"]) == 1
    assert (await gateway.admin.get("/prices", params={"model_id": "m"})).json()["data"] == []
    async with gateway.client(await gateway.make_key(scopes=("tenant-admin",))) as client:
        hidden = await client.get(f"{gateway.origin}/admin/v1/keys", params={"tenant_id": one["id"]})
    assert hidden.status_code == 404
