"""What a key may do, from where, until when, and how it is replaced."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from gateway.clock import utc_now
from gateway.domain.keys.last_used import LastUsed
from gateway.domain.keys.models import ApiKey
from tests.support.gateways import DEADLINE_S, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

CHAT = {"model": "m-7b", "messages": [{"role": "user", "content": "Hi!"}]}


async def new_key(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    tenant = await gateway.post("/tenants", {"name": f"tenant of {utc_now()}", "tier": "pro"})
    return await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", **fields})


async def status_of(gateway: Gateway, key: str, path: str = "/models") -> int:
    async with gateway.client(key) as client:
        return (await client.get(path)).status_code


async def until_refused(gateway: Gateway, key: str) -> None:
    refused = []

    async def ask() -> None:
        refused.append(await status_of(gateway, key) == 401)

    await ask()
    while not refused[-1]:
        await ask()


async def actions(gateway: Gateway, object_id: str) -> list[str]:
    entries = (await gateway.admin.get("/audit", params={"limit": 1000})).json()["data"]
    return [entry["action"] for entry in entries if entry["object_id"] == object_id]


async def test_a_key_is_changed_field_by_field_and_each_change_is_on_record(gateway: Gateway) -> None:
    made = await new_key(gateway, limits={"concurrency": 2, "tokens_per_day": 5}, allowed_models=["small"])
    path = f"/keys/{made['id']}"
    changed = (await gateway.admin.patch(path, json={"name": "renamed", "limits": {"concurrency": None}})).json()
    assert (changed["name"], changed["limits"]) == ("renamed", {"tokens_per_day": 5})
    assert (changed["allowed_models"], changed["scopes"]) == (["small"], ["inference"])
    changed = (await gateway.admin.patch(path, json={"limits": None, "allowed_models": None})).json()
    assert (changed["limits"], changed["allowed_models"]) == (None, None)
    assert (await gateway.admin.get(path)).json() == changed
    assert (await gateway.admin.delete(path)).status_code == 204
    assert (await gateway.admin.patch(path, json={"name": "x"})).status_code == 409
    assert await actions(gateway, made["id"]) == ["key.create", "key.change", "key.change", "key.revoke"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expires_at", "2020-01-01T00:00:00Z"),
        ("expires_at", "tomorrow"),
        ("allowed_networks", ["300.0.0.0/8"]),
        ("allowed_networks", ["10.0.0.1/8"]),
        ("allowed_networks", []),
        ("allowed_models", []),
        ("limits", {"concurrency": -1}),
        ("limits", {"max_adapters": 1}),
        ("scopes", []),
    ],
)
async def test_what_cannot_be_is_refused_by_name(gateway: Gateway, field: str, value: object) -> None:
    made = await new_key(gateway)
    reply = await gateway.admin.patch(f"/keys/{made['id']}", json={field: value})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(field)


async def test_a_rotated_key_works_beside_the_new_one_until_the_overlap_ends(gateway: Gateway) -> None:
    made = await new_key(gateway, limits={"concurrency": 2})
    rotated = (await gateway.admin.post(f"/keys/{made['id']}/rotate", json={"overlap_s": 600})).json()
    assert (rotated["id"], rotated["limits"]) == (made["id"], {"concurrency": 2})
    assert rotated["key"] != made["key"]
    assert [await status_of(gateway, each["key"]) for each in (made, rotated)] == [200, 200]
    # Another one during the overlap: the oldest ends.
    newest = (await gateway.admin.post(f"/keys/{made['id']}/rotate", json={"overlap_s": 2})).json()
    assert [await status_of(gateway, each["key"]) for each in (made, newest)] == [401, 200]
    await until_refused(gateway, rotated["key"])
    assert await status_of(gateway, newest["key"]) == 200
    last = (await gateway.admin.post(f"/keys/{made['id']}/rotate", json={"overlap_s": 0})).json()
    assert [await status_of(gateway, each["key"]) for each in (newest, last)] == [401, 200]
    assert (await gateway.admin.delete(f"/keys/{made['id']}")).status_code == 204
    assert await status_of(gateway, last["key"]) == 401


async def test_revoking_a_rotated_key_ends_both(gateway: Gateway) -> None:
    made = await new_key(gateway)
    rotated = (await gateway.admin.post(f"/keys/{made['id']}/rotate", json={})).json()
    assert [await status_of(gateway, each["key"]) for each in (made, rotated)] == [200, 200]
    await gateway.admin.delete(f"/keys/{made['id']}")
    assert [await status_of(gateway, each["key"]) for each in (made, rotated)] == [401, 401]


async def test_a_key_expires(gateway: Gateway) -> None:
    made = await new_key(gateway, expires_at=(utc_now() + timedelta(hours=1)).isoformat())
    assert await status_of(gateway, made["key"]) == 200
    async with gateway.services.sessions.begin() as session:
        # However slow the machine is: nothing refuses an end that has come meanwhile.
        key = await session.get_one(ApiKey, UUID(made["id"]))
        key.expires_at = utc_now() + timedelta(seconds=1)
    gateway.services.keyring.end(made["prefix"])
    await until_refused(gateway, made["key"])


async def test_a_key_works_only_from_its_networks_on_every_plane(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(tmp_path, valkey.url, trusted_proxies="127.0.0.0/8")
    async with running_gateway(settings) as gateway:
        made = await new_key(gateway, allowed_networks=["192.0.2.0/24", "2001:db8::/32"], scopes=["inference", "usage"])

        async def refused_from(address: str | None) -> list[bool]:
            headers = {} if address is None else {"X-Forwarded-For": f"198.51.100.1, {address}"}
            async with gateway.client(made["key"]) as client:
                client.headers.update(headers)
                replies = [await client.get("/models"), await client.post("/chat/completions", json=CHAT)]
                form = {"key": made["key"]}
                replies.append(await client.post(f"{gateway.origin}/dashboard/login", data=form))
            codes = [reply.json()["error"]["code"] for reply in replies[:2] if reply.status_code == 403]
            assert set(codes) <= {"address_not_allowed"}
            return [reply.status_code == 403 for reply in replies]

        for inside in ("192.0.2.7", "192.0.2.7:4711", "::ffff:192.0.2.7", "2001:db8::7", "[2001:db8::7]:80"):
            assert await refused_from(inside) == [False] * 3, inside
        for outside in (None, "192.0.3.1", "2001:db9::7", "nonsense", "::ffff:192.0.3.1"):
            assert await refused_from(outside) == [True] * 3, outside


async def test_who_is_no_trusted_proxy_is_not_believed_about_addresses(gateway: Gateway) -> None:
    made = await new_key(gateway, allowed_networks=["192.0.2.0/24"])
    async with gateway.client(made["key"]) as client:
        client.headers["X-Forwarded-For"] = "192.0.2.7"
        assert (await client.get("/models")).status_code == 403
        assert (await client.post("/chat/completions", json=CHAT)).status_code == 403


async def test_a_key_uses_only_its_models_by_any_of_their_names(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    await gateway.post("/models", {"id": "m-70b", "pool": "large", "context_window": 512})
    made = await new_key(gateway, allowed_models=["small"])
    async with gateway.client(made["key"]) as client:
        assert {card["id"] for card in (await client.get("/models")).json()["data"]} == {"small", "m-7b"}
        for model, is_refused in (("small", False), ("m-7b", False), ("m-70b", True), ("auto", True), ("none", True)):
            for path, body in (
                ("/chat/completions", CHAT),
                ("/completions", {"prompt": "Hi!"}),
                ("/embeddings", {"input": "Hi!"}),
                ("/route", CHAT),
                ("/tokenize", {"prompt": "Hi!"}),
            ):
                reply = await client.post(path, json={**body, "model": model})
                if (model, path) == ("auto", "/tokenize"):
                    # Counted as the small pool does, which is allowed.
                    continue
                assert (reply.status_code == 403) == is_refused, (model, path, reply.text)
                if is_refused:
                    error = reply.json()["error"]
                    assert (error["code"], error["param"]) == ("model_not_allowed", "model")


async def test_an_applications_key_does_not_see_what_the_company_spends(gateway: Gateway) -> None:
    application, accountant = await new_key(gateway), await new_key(gateway, scopes=["usage"])
    for path in ("/usage", "/organization/costs?start_time=0", "/organization/usage/completions?start_time=0"):
        assert await status_of(gateway, application["key"], path) == 403
        # Allowed, but there is no ClickHouse here.
        assert await status_of(gateway, accountant["key"], path) == 503
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        for made, status in ((application, 403), (accountant, 303)):
            reply = await client.post(f"{gateway.origin}/dashboard/login", data={"key": made["key"]})
            assert reply.status_code == status
    async with gateway.client(application["key"]) as client:
        answer = (await client.get("/limits")).json()
        assert answer["credit"] is None
        assert "budget" not in {each["name"] for each in answer["limits"]}
    async with gateway.client(accountant["key"]) as client:
        answer = (await client.get("/limits")).json()
        assert answer["credit"] is not None
        assert "budget" in {each["name"] for each in answer["limits"]}
        assert (await client.post("/chat/completions", json=CHAT)).status_code == 403


async def test_a_tenants_administrator_gets_hold_of_no_platform_key(gateway: Gateway) -> None:
    admin = await new_key(gateway, scopes=["tenant-admin"])
    platform = await gateway.post("/keys", {"tenant_id": admin["tenant_id"], "name": "p", "scopes": ["platform-admin"]})
    keys = f"{gateway.origin}/admin/v1/keys"
    async with gateway.client(admin["key"]) as client:
        assert (await client.post(f"{keys}/{platform['id']}/rotate", json={})).status_code == 403
        assert (await client.patch(f"{keys}/{platform['id']}", json={"name": "mine"})).status_code == 403
        raised = await client.patch(f"{keys}/{admin['id']}", json={"scopes": ["platform-admin"]})
        assert raised.status_code == 403


async def test_the_last_key_that_administers_the_platform_gets_no_end(gateway: Gateway) -> None:
    [key] = (await gateway.admin.get("/keys")).json()["data"]
    later = (utc_now() + timedelta(days=1)).isoformat()
    for change in ({"expires_at": later}, {"scopes": ["usage"]}):
        assert (await gateway.admin.patch(f"/keys/{key['id']}", json=change)).status_code == 409
    assert (await gateway.admin.patch(f"/keys/{key['id']}", json={"name": "renamed"})).status_code == 200


async def test_when_a_key_was_last_used_is_written_later(gateway: Gateway) -> None:
    writer = LastUsed(gateway.services.sessions, gateway.services.keyring)
    made, idle = await new_key(gateway), await new_key(gateway)
    assert await status_of(gateway, made["key"]) == 200
    wrong = f"tg-{idle['prefix']}-" + "b" * 40
    assert await status_of(gateway, wrong) == 401
    await writer.write()
    shown = [(await gateway.admin.get(f"/keys/{each['id']}")).json()["last_used_at"] for each in (made, idle)]
    assert (shown[0] > made["created_at"], shown[1]) == (True, None)
