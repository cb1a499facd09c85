"""Tiers are made, copied and retired; tenants and end users have limits of their own in place of theirs."""

from typing import Any

from tests.support.gateways import Gateway


async def test_a_tier_is_copied_with_changes_and_the_model_stays(gateway: Gateway) -> None:
    free = (await gateway.admin.get("/tiers/free")).json()
    made = await gateway.post("/tiers", {"name": "trial", "copy_of": "free", "concurrency": 1})
    assert made == {**free, "name": "trial", "concurrency": 1}
    assert (await gateway.admin.get("/tiers/free")).json() == free
    plain = await gateway.post("/tiers", {"name": "plain"})
    assert (plain["requests_per_minute"], plain["default_max_tokens"], plain["priority"]) == (None, 1024, 2)
    assert (await gateway.admin.post("/tiers", json={"name": "trial"})).status_code == 409
    for body, param in (
        ({"name": "x", "copy_of": "none"}, "copy_of"),
        ({"name": "a/b"}, "name"),
        ({"name": "x", "allowed_pools": ["none"]}, "allowed_pools"),
    ):
        reply = await gateway.admin.post("/tiers", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    await gateway.make_key(tier="trial")


async def test_a_retired_tier_takes_no_new_tenants_and_keeps_its_own(gateway: Gateway) -> None:
    await gateway.post("/tiers", {"name": "old", "copy_of": "pro"})
    tenant = await gateway.post("/tenants", {"name": "loyal", "tier": "old"})
    other = await gateway.post("/tenants", {"name": "other", "tier": "pro"})
    key = (await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k"}))["key"]
    retired = (await gateway.admin.patch("/tiers/old", json={"is_retired": True})).json()
    assert retired["retired_at"] is not None
    for reply in (
        await gateway.admin.post("/tenants", json={"name": "late", "tier": "old"}),
        await gateway.admin.patch(f"/tenants/{other['id']}", json={"tier": "old"}),
    ):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tier")
    kept = await gateway.admin.patch(f"/tenants/{tenant['id']}", json={"tier": "old", "name": "still loyal"})
    assert kept.status_code == 200
    async with gateway.client(key) as client:
        assert (await client.get("/limits")).json()["tier"] == "old"
    assert (await gateway.admin.patch("/tiers/old", json={"is_retired": False})).json()["retired_at"] is None
    await gateway.post("/tenants", {"name": "late", "tier": "old"})
    entries = (await gateway.admin.get("/audit", params={"limit": 1000})).json()["data"]
    assert [entry["action"] for entry in entries if entry["object_id"] == "old"] == [
        "tier.create",
        "tier.change",
        "tier.change",
    ]


async def limits_of(gateway: Gateway, key: str, *, user: str | None = None) -> dict[str, dict[str, int | None]]:
    """By scope and name, what `GET /v1/limits` says is the most."""
    async with gateway.client(key) as client:
        answer = (await client.get("/limits", params={} if user is None else {"user": user})).json()
    found: dict[str, dict[str, int | None]] = {}
    for each in answer["limits"]:
        found.setdefault(each["scope"].partition(":")[0], {})[each["name"]] = each["max"]
    found["request"] = {name: answer[name] for name in ("context_tokens", "default_max_tokens")}
    return found


async def test_every_limit_is_overridden_by_tenant_and_null_gives_the_tiers_back(gateway: Gateway) -> None:
    tier = (await gateway.admin.get("/tiers/free")).json()
    own: dict[str, Any] = {
        "requests_per_minute": 7,
        "tokens_per_minute": 70,
        "concurrency": 2,
        "tokens_per_day": 700,
        "budget_nanousd_per_month": 9000,
        "context_tokens": 100,
        "default_max_tokens": 10,
        "max_adapters": 0,
    }
    tenant = await gateway.post("/tenants", {"name": "special", "tier": "free", "limits": own})
    key = (await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference", "usage"]}))[
        "key"
    ]
    found = await limits_of(gateway, key)
    assert found["tenant"] == {
        "requests_per_minute": 7,
        "tokens_per_minute": 70,
        "concurrency": 2,
        "tokens_per_day": 700,
        "budget": 9000,
    }
    assert found["request"] == {"context_tokens": 100, "default_max_tokens": 10}
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    adapter = {"tenant_id": tenant["id"], "name": "voice", "variants": {"m-7b": "voice"}}
    assert (await gateway.admin.post("/adapters", json=adapter)).status_code == 403
    path = f"/tenants/{tenant['id']}"
    changed = (await gateway.admin.patch(path, json={"limits": {"concurrency": None, "max_adapters": None}})).json()
    assert changed["limits"] == {name: own[name] for name in own if name not in ("concurrency", "max_adapters")}
    assert (await limits_of(gateway, key))["tenant"]["concurrency"] == tier["concurrency"]
    await gateway.post("/adapters", adapter)
    assert (await gateway.admin.patch(path, json={"limits": None})).json()["limits"] is None
    found = await limits_of(gateway, key)
    assert found["tenant"]["requests_per_minute"] == tier["requests_per_minute"]
    assert found["request"] == {name: tier[name] for name in ("context_tokens", "default_max_tokens")}


async def test_a_key_narrows_the_context_and_never_widens_it(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "free", "limits": {"context_tokens": 100}})
    for asked, allowed in ((50, 50), (5000, 100)):
        limits = {"context_tokens": asked, "default_max_tokens": 3, "concurrency": 1}
        made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "limits": limits})
        found = await limits_of(gateway, made["key"])
        assert found["request"] == {"context_tokens": allowed, "default_max_tokens": 3}
        assert found["key"]["concurrency"] == 1


async def test_a_tenants_administrator_sets_limits_of_end_users_and_nothing_else(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    made = {"tenant_id": tenant["id"], "name": "a", "scopes": ["tenant-admin", "inference"]}
    key = (await gateway.post("/keys", made))["key"]
    admin = f"{gateway.origin}/admin/v1"
    async with gateway.client(key) as client:
        path = f"{admin}/tenants/{tenant['id']}"
        for body in ({"limits": {"concurrency": 9}}, {"tier": "free"}, {"user_limits": None, "name": "x"}):
            assert (await client.patch(path, json=body)).status_code == 403
        limits = {"concurrency": 2, "tokens_per_day": 50}
        assert (await client.patch(path, json={"user_limits": limits})).json()["user_limits"] == limits
        body = {"user_id": "al ice/é", "limits": {"concurrency": 5}}
        alice = (await client.post(f"{admin}/users", json=body)).json()
        assert (await client.post(f"{admin}/users", json=body)).status_code == 409
        [listed] = (await client.get(f"{admin}/users")).json()["data"]
        assert listed == alice
    found = await limits_of(gateway, key, user="al ice/é")
    assert (found["user"]["concurrency"], found["user"]["tokens_per_day"]) == (5, 50)
    assert (await limits_of(gateway, key, user="bob"))["user"]["concurrency"] == 2
    assert "user" not in await limits_of(gateway, key)
    async with gateway.client(key) as client:
        row = f"{admin}/users/{alice['id']}"
        changed = (await client.patch(row, json={"limits": {"concurrency": None, "requests_per_minute": 1}})).json()
        assert changed["limits"] == {"requests_per_minute": 1}
        assert (await limits_of(gateway, key, user="al ice/é"))["user"]["concurrency"] == 2
        assert (await client.delete(row)).status_code == 204
        assert (await client.get(row)).status_code == 404
        actions = [each["action"] for each in (await client.get(f"{admin}/audit")).json()["data"]]
    assert actions[-4:] == ["tenant.change", "user.create", "user.change", "user.delete"]
