"""Nobody locks himself out of the admin plane."""

from datetime import timedelta
from typing import Any

import httpx

from gateway.clock import utc_now
from tests.support.gateways import Gateway


async def own_key(gateway: Gateway) -> dict[str, Any]:
    [key] = (await gateway.admin.get("/keys")).json()["data"]
    return dict(key)


async def make_admin(gateway: Gateway, tenant_id: str) -> dict[str, Any]:
    return await gateway.post("/keys", {"tenant_id": tenant_id, "name": "second", "scopes": ["platform-admin"]})


def refusal(reply: httpx.Response) -> str:
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict"), reply.text
    return str(reply.json()["error"]["message"])


async def test_the_last_platform_admin_key_stays_until_there_is_another(gateway: Gateway) -> None:
    key = await own_key(gateway)
    assert "tiergate admin-key" in refusal(await gateway.admin.delete(f"/keys/{key['id']}"))
    assert (await gateway.admin.get("/tenants")).status_code == 200
    second = await make_admin(gateway, key["tenant_id"])
    assert (await gateway.admin.delete(f"/keys/{key['id']}")).status_code == 204
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {second['key']}"}) as client:
        refusal(await client.delete(f"{gateway.origin}/admin/v1/keys/{second['id']}"))


async def test_one_admin_key_always_lets_in_from_everywhere(gateway: Gateway) -> None:
    first = await own_key(gateway)
    elsewhere = {"allowed_networks": ["192.0.2.1/32"]}
    assert "allowed_networks" in refusal(await gateway.admin.patch(f"/keys/{first['id']}", json=elsewhere))
    assert (await gateway.admin.get("/tenants")).status_code == 200
    operations = await gateway.post("/tenants", {"name": "operations", "tier": "pro"})
    second = await make_admin(gateway, operations["id"])
    assert (await gateway.admin.patch(f"/keys/{second['id']}", json=elsewhere)).status_code == 200
    # The second lets nobody in from here, and is no substitute.
    refusal(await gateway.admin.patch(f"/keys/{first['id']}", json=elsewhere))
    refusal(await gateway.admin.delete(f"/keys/{first['id']}"))
    assert (await gateway.admin.patch(f"/keys/{second['id']}", json={"allowed_networks": None})).status_code == 200
    assert (await gateway.admin.patch(f"/keys/{first['id']}", json=elsewhere)).status_code == 200
    async with httpx.AsyncClient(
        base_url=f"{gateway.origin}/admin/v1", headers={"Authorization": f"Bearer {second['key']}"}
    ) as admin:
        # The first lets nobody in from here now.
        assert (await admin.get("/tenants")).status_code == 200
        refusal(await admin.patch(f"/keys/{second['id']}", json=elsewhere))
        refusal(await admin.patch(f"/tenants/{operations['id']}", json={"is_suspended": True}))
        assert (await admin.patch(f"/keys/{first['id']}", json={"allowed_networks": None})).status_code == 200


async def test_an_admin_key_that_expires_is_no_other(gateway: Gateway) -> None:
    first = await own_key(gateway)
    second = await make_admin(gateway, first["tenant_id"])
    ends = {"expires_at": (utc_now() + timedelta(days=1)).isoformat()}
    assert (await gateway.admin.patch(f"/keys/{second['id']}", json=ends)).status_code == 200
    refusal(await gateway.admin.delete(f"/keys/{first['id']}"))
    assert (await gateway.admin.delete(f"/keys/{second['id']}")).status_code == 204


async def test_a_suspended_tenants_admin_key_is_no_other(gateway: Gateway) -> None:
    key = await own_key(gateway)
    tenant = await gateway.post("/tenants", {"name": "operations", "tier": "pro"})
    second = await make_admin(gateway, tenant["id"])
    await gateway.admin.patch(f"/tenants/{tenant['id']}", json={"is_suspended": True})
    refusal(await gateway.admin.delete(f"/keys/{key['id']}"))
    assert (await gateway.admin.delete(f"/keys/{second['id']}")).status_code == 204


async def test_the_platforms_own_tenant_is_neither_suspended_nor_deleted_whatever_its_name(gateway: Gateway) -> None:
    tenant_id = (await own_key(gateway))["tenant_id"]
    other = await gateway.post("/tenants", {"name": "operations", "tier": "pro"})
    await make_admin(gateway, other["id"])
    renamed = (await gateway.admin.patch(f"/tenants/{tenant_id}", json={"name": "us"})).json()
    assert (renamed["name"], renamed["is_platform"]) == ("us", True)
    refusal(await gateway.admin.patch(f"/tenants/{tenant_id}", json={"is_suspended": True}))
    refusal(await gateway.admin.delete(f"/tenants/{tenant_id}"))
    assert (await gateway.admin.get("/tenants")).status_code == 200


async def test_the_tenant_with_the_last_admin_keys_is_neither_suspended_nor_deleted(gateway: Gateway) -> None:
    key = await own_key(gateway)
    tenant = await gateway.post("/tenants", {"name": "operations", "tier": "pro"})
    second = await make_admin(gateway, tenant["id"])
    assert (await gateway.admin.delete(f"/keys/{key['id']}")).status_code == 204
    headers = {"Authorization": f"Bearer {second['key']}"}
    async with httpx.AsyncClient(base_url=f"{gateway.origin}/admin/v1", headers=headers) as admin:
        refusal(await admin.patch(f"/tenants/{tenant['id']}", json={"is_suspended": True}))
        refusal(await admin.delete(f"/tenants/{tenant['id']}"))
        assert (await admin.get("/tenants")).status_code == 200


async def test_a_platform_administrator_names_the_tenant_of_a_key_and_a_tenants_own_need_not(gateway: Gateway) -> None:
    reply = await gateway.admin.post("/keys", json={"name": "k"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tenant_id")
    async with gateway.client(await gateway.make_key(scopes=("tenant-admin",))) as client:
        assert (await client.post(f"{gateway.origin}/admin/v1/keys", json={"name": "k"})).status_code == 201
