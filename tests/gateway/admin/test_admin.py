"""The admin plane over HTTP: tenants, keys, tiers, models, adapters, prices; who may see what."""

import httpx
import pytest
from fastapi import FastAPI

from gateway.http.rendering import install_error_handlers
from tests.support.gateways import Gateway


async def test_a_new_database_has_three_tiers_and_takes_the_bootstrap_key(gateway: Gateway) -> None:
    tiers = (await gateway.admin.get("/tiers")).json()["data"]
    assert {tier["name"]: tier["priority"] for tier in tiers} == {"enterprise": 0, "pro": 1, "free": 2}


async def test_a_key_works_until_it_is_revoked(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]})
    assert made["key"].startswith(f"tg-{made['prefix']}-")
    async with gateway.client(made["key"]) as client:
        assert (await client.get("/models")).status_code == 200
        assert (await gateway.admin.delete(f"/keys/{made['id']}")).status_code == 204
        refused = await client.get("/models")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    [shown] = [key for key in (await gateway.admin.get("/keys")).json()["data"] if key["id"] == made["id"]]
    assert shown["revoked_at"] is not None
    assert "key" not in shown


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x", "Basic YTpi", "Bearer tg-abcdefgh-" + "b" * 40])
async def test_a_bad_key_is_401_on_every_plane(gateway: Gateway, header: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": header}) as client:
        for path in ("/v1/models", "/admin/v1/tenants", "/v1/usage"):
            reply = await client.get(gateway.origin + path)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_an_inference_key_may_not_administer(gateway: Gateway) -> None:
    async with gateway.client(await gateway.make_key()) as client:
        reply = await client.get(f"{gateway.origin}/admin/v1/tenants")
    assert reply.status_code == 403


async def test_a_tenants_administrator_sees_only_its_own(gateway: Gateway) -> None:
    other = await gateway.post("/tenants", {"name": "other", "tier": "free"})
    key = await gateway.make_key(scopes=("tenant-admin",))
    async with gateway.client(key) as client:
        admin = f"{gateway.origin}/admin/v1"
        [tenant] = (await client.get(f"{admin}/tenants")).json()["data"]
        assert tenant["id"] != other["id"]
        assert (await client.get(f"{admin}/tenants/{other['id']}")).status_code == 404
        stolen = await client.post(f"{admin}/keys", json={"tenant_id": other["id"], "name": "k"})
        assert stolen.status_code == 404
        raised = await client.post(f"{admin}/keys", json={"name": "k", "scopes": ["platform-admin"]})
        assert raised.status_code == 403
        own = await client.post(f"{admin}/keys", json={"name": "k"})
        assert (own.status_code, own.json()["tenant_id"]) == (201, tenant["id"])
        assert (await client.patch(f"{admin}/tiers/free", json={"concurrency": 9})).status_code == 403


async def test_a_suspended_tenants_keys_are_refused(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "late-payer", "tier": "pro"})
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k"})
    await gateway.admin.patch(f"/tenants/{tenant['id']}", json={"is_suspended": True})
    async with gateway.client(made["key"]) as client:
        reply = await client.get("/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "tenant_suspended")


async def test_lists_come_in_pages_in_order(gateway: Gateway) -> None:
    for number in range(5):
        await gateway.post("/tenants", {"name": f"t{number}", "tier": "free"})
    names, after = [], None
    while True:
        query = {"limit": 2} | ({"after": after} if after else {})
        page = (await gateway.admin.get("/tenants", params=query)).json()
        names += [tenant["name"] for tenant in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert names == ["platform", "t0", "t1", "t2", "t3", "t4"]


async def test_models_adapters_and_prices_are_declared(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    price = {"model_id": "m-7b", "prompt_nanousd": 100, "completion_nanousd": 400}
    made = await gateway.post("/prices", price)
    assert made["cached_prompt_nanousd"] == 100
    adapter = await gateway.post("/adapters", {"name": "pirate", "variants": {"m-7b": "pirate-v1"}})
    assert adapter["tenant_id"] is None
    async with gateway.client(await gateway.make_key()) as client:
        models = {card["id"] for card in (await client.get("/models")).json()["data"]}
    assert models == {"auto", "small", "m-7b", "pirate"}


async def test_a_private_adapter_is_its_owners_alone(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    owner = await gateway.post("/tenants", {"name": "owner", "tier": "pro"})
    await gateway.post("/adapters", {"name": "secret", "variants": {"m-7b": "s"}, "tenant_id": owner["id"]})
    key = (await gateway.post("/keys", {"tenant_id": owner["id"], "name": "k"}))["key"]
    seen = []
    for each in (key, await gateway.make_key()):
        async with gateway.client(each) as client:
            seen.append("secret" in {card["id"] for card in (await client.get("/models")).json()["data"]})
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tenants", {"name": "x", "tier": "gold"}, 400, "tier"),
        ("/tenants", {"name": "platform", "tier": "free"}, 409, "name"),
        ("/tenants", {"name": "", "tier": "free"}, 400, "name"),
        ("/tenants", {"name": "   ", "tier": "free"}, 400, "name"),
        ("/tenants", {"name": "a\x00b", "tier": "free"}, 400, "name"),
        ("/tenants", {"name": "x"}, 400, "tier"),
        ("/keys", {"name": "k\nk"}, 400, "name"),
        ("/keys", {"name": "k", "scopes": ["root"]}, 400, "scopes.0"),
        ("/models", {"id": "auto", "pool": "small", "context_window": 5}, 400, "id"),
        ("/prices", {"model_id": "none", "prompt_nanousd": 1, "completion_nanousd": 1}, 400, "model_id"),
        ("/adapters", {"name": "a", "variants": {"none": "a"}}, 400, "variants"),
    ],
)
async def test_bad_input_names_the_field(
    gateway: Gateway, path: str, body: dict[str, object], status: int, param: str
) -> None:
    reply = await gateway.admin.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tenants", b'{"name": "x", "tier": "\\ud800"}', "tier"),
        ("/prices", b'{"model_id": "\\ud800", "prompt_nanousd": 1, "completion_nanousd": 1}', "model_id"),
    ],
)
async def test_half_a_character_is_no_name(gateway: Gateway, path: str, body: bytes, param: str) -> None:
    reply = await gateway.admin.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_after_a_bug_of_ours_the_client_is_told_that_the_connection_closes() -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        reply = await client.get("/broken")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("body", [b"{", b'{"name": "\xff"}', b"[" * 100_000])
async def test_what_is_not_json_is_called_so(gateway: Gateway, body: bytes) -> None:
    reply = await gateway.admin.post("/tenants", content=body, headers={"Content-Type": "application/json"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_json", None)


async def test_a_tenant_cannot_name_what_it_does_not_see_at_the_workers(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    owner = await gateway.post("/tenants", {"name": "owner", "tier": "pro"})
    await gateway.post("/adapters", {"name": "secret", "variants": {"m-7b": "s"}, "tenant_id": owner["id"]})
    await gateway.post("/adapters", {"name": "pirate", "variants": {"m-7b": "p"}})
    key = await gateway.make_key(scopes=("tenant-admin",))
    async with gateway.client(key) as client:
        stolen, unknown, public = [
            await client.post(
                f"{gateway.origin}/admin/v1/adapters", json={"name": f"my-{name}", "variants": {"m-7b": name}}
            )
            for name in ("s", "nothing", "p")
        ]
    assert (stolen.status_code, stolen.json()["error"]["param"]) == (400, "variants")
    assert unknown.status_code == 400
    assert public.status_code == 201, public.text


async def test_every_change_leaves_an_audit_entry(gateway: Gateway) -> None:
    await gateway.admin.patch("/tiers/free", json={"requests_per_minute": None})
    [*_, entry] = (await gateway.admin.get("/audit")).json()["data"]
    assert (entry["action"], entry["object_id"]) == ("tier.change", "free")
    assert entry["detail"] == {"requests_per_minute": None}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/moderations", 404, "unsupported_endpoint"),
        ("POST", "/v1/audio/speech", 404, "unsupported_endpoint"),
        ("GET", "/v1/uploads/upload-1", 404, "unsupported_endpoint"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "unsupported_endpoint"),
        ("POST", "/v1/responses/compact", 404, "unsupported_endpoint"),
        ("GET", "/v1/chat/completions/c1/messages", 404, "unsupported_endpoint"),
        ("GET", "/v1/organization/projects", 404, "unsupported_endpoint"),
    ],
)
async def test_every_path_answers_in_openais_shape(
    gateway: Gateway, method: str, path: str, status: int, code: str
) -> None:
    reply = await gateway.admin.request(method, gateway.origin + path)
    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.json()["error"]["code"] == code


async def test_ready_says_what_is_missing(gateway: Gateway) -> None:
    reply = await gateway.admin.get(f"{gateway.origin}/ready")
    assert (reply.status_code, reply.json()["missing"]) == (503, ["replica"])
    assert (await gateway.admin.get(f"{gateway.origin}/health")).status_code == 200
    assert "tiergate_requests_in_flight" in (await gateway.admin.get(f"{gateway.origin}/metrics")).text


async def test_a_body_over_the_limit_is_refused_on_the_admin_plane_too(gateway: Gateway) -> None:
    reply = await gateway.admin.post("/tenants", json={"name": "x" * (9 * 2**20), "tier": "free"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


async def test_every_answer_has_a_request_id(gateway: Gateway) -> None:
    replies = [
        await gateway.admin.get(gateway.origin + path)
        for path in ("/health", "/nothing", "/v1/models", "/admin/v1/tenants", "/v1/chat/completions")
    ]
    assert len({reply.headers["x-request-id"] for reply in replies}) == len(replies)
