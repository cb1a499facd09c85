"""Tools over REST: whose they are, what is refused, and that a secret goes in and never comes out."""

import json
import sqlite3
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

SECRET = "Bearer t0p-s3cret-xyzzy"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.\nNow.",
    "parameters": SCHEMA,
    "url": "https://tools.example.com/weather",
}


async def tenants_admin(gateway: Gateway, *scopes: str) -> httpx.AsyncClient:
    key = await gateway.make_key(scopes=("tenant-admin", *scopes))
    return httpx.AsyncClient(
        base_url=str(gateway.admin.base_url), headers={"Authorization": f"Bearer {key}"}, timeout=30
    )


async def post(gateway: Gateway, **fields: Any) -> httpx.Response:
    """Escaped, so that halves of surrogate pairs pass."""
    body = json.dumps(TOOL | fields).encode()
    return await gateway.admin.post("/tools", content=body, headers={"content-type": "application/json"})


def why(reply: httpx.Response, status: int = 400) -> tuple[str, str]:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    return error["param"], error["message"]


async def test_a_tool_is_made_shown_changed_and_deleted_and_its_secret_never_shown(gateway: Gateway) -> None:
    made = await gateway.post("/tools", TOOL | {"credential": {"header": "X-Key", "secret": SECRET}})
    assert made["tenant_id"] is None and made["credential_header"] == "X-Key" and made["is_enabled"] is True
    assert (made["timeout_s"], made["max_result_bytes"], made["max_rounds"]) == (10, 16384, 4)
    path = f"/tools/{made['id']}"
    changed = await gateway.admin.patch(path, json={"is_enabled": False, "timeout_s": 2})
    listed = await gateway.admin.get("/tools")
    shown = await gateway.admin.get(path)
    assert shown.json() == changed.json() == listed.json()["data"][0]
    assert shown.json()["is_enabled"] is False and shown.json()["description"] == TOOL["description"]
    assert (await gateway.admin.delete(path)).status_code == 204
    assert (await gateway.admin.get(path)).status_code == 404
    audit = await gateway.admin.get("/audit", params={"limit": 100})
    assert [each["action"] for each in audit.json()["data"] if each["object_id"] == made["id"]] == [
        "tool.create",
        "tool.change",
        "tool.delete",
    ]
    said = json.dumps([made, changed.json(), listed.json(), audit.json()])
    assert "xyzzy" not in said and "sealed" not in said


async def test_a_secret_is_sealed_in_the_database(gateway: Gateway) -> None:
    await gateway.post("/tools", TOOL | {"credential": {"secret": SECRET}})
    with closing(sqlite3.connect(gateway.services.settings.data_dir / "tiergate.db")) as file:
        assert "xyzzy" not in "".join(file.iterdump())
        assert file.execute("SELECT length(sealed_credential) FROM server_tools").fetchone()[0] > len(SECRET)


async def test_a_tenants_administrator_has_its_own_and_sees_everybodys_without_their_place(gateway: Gateway) -> None:
    shared = await gateway.post("/tools", TOOL | {"credential": {"secret": SECRET}})
    async with await tenants_admin(gateway) as one, await tenants_admin(gateway) as other:
        own = (await one.post("/tools", json=TOOL | {"name": "stocks"})).json()
        assert own["tenant_id"] is not None and own["url"] == TOOL["url"]
        seen = {tool["name"]: tool for tool in (await one.get("/tools")).json()["data"]}
        assert set(seen) == {"weather", "stocks"}
        assert seen["weather"]["url"] is None and seen["weather"]["credential_header"] is None
        assert [tool["name"] for tool in (await other.get("/tools")).json()["data"]] == ["weather"]
        for tool in (own, shared):
            path = f"/tools/{tool['id']}"
            assert (await other.patch(path, json={"is_enabled": False})).status_code == 404
            assert (await other.delete(path)).status_code == 404
        assert (await other.get(f"/tools/{own['id']}")).status_code == 404
        stolen = await other.post("/tools", json=TOOL | {"name": "x", "tenant_id": own["tenant_id"]})
        assert stolen.status_code == 404
    async with gateway.client(await gateway.make_key()) as client:
        assert (await client.get(f"{gateway.origin}/admin/v1/tools")).status_code == 403


async def test_a_name_means_one_tool_to_whoever_asks(gateway: Gateway) -> None:
    await gateway.post("/tools", TOOL)
    async with await tenants_admin(gateway) as one, await tenants_admin(gateway) as other:
        assert why(await one.post("/tools", json=TOOL), 409)[0] == "name"
        for each in (one, other):
            assert (await each.post("/tools", json=TOOL | {"name": "mine"})).status_code == 201
        assert why(await one.post("/tools", json=TOOL | {"name": "mine"}), 409)[0] == "name"
    assert why(await gateway.admin.post("/tools", json=TOOL | {"name": "mine"}), 409)[0] == "name"


async def test_a_deleted_tenants_tools_are_gone(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "short-lived", "tier": "pro"})
    await gateway.post("/tools", TOOL | {"tenant_id": tenant["id"]})
    assert (await gateway.admin.delete(f"/tenants/{tenant['id']}")).status_code == 204
    assert (await gateway.admin.get("/tools")).json()["data"] == []
    reply = await gateway.admin.post("/tools", json=TOOL | {"tenant_id": tenant["id"]})
    assert reply.status_code == 404


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """As many nodes as 2 to the power of the levels."""
    definitions = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    definitions[f"d{levels}"] = {"type": "object"}
    return {"type": "object", "$defs": definitions, "$ref": "#/$defs/d0"}


LOOP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}}


BAD_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"type": "array"}, "schema of an object"),
    ({}, "schema of an object"),
    ({"type": "object", "properties": {"a": {"type": "text"}}}, "no valid JSON schema"),
    ({"type": "object", "required": "a"}, "no valid JSON schema"),
    ({"type": "object", "properties": {"a": {"pattern": "("}}}, "no valid JSON schema"),
    ({"type": "object", "properties": {"a": {"pattern": "(a{1000}){1000}"}}}, "no valid JSON schema"),
    (LOOP, "parameters.properties.a.$ref.items.$ref: '#/$defs/n' refers to itself without end"),
    ({"type": "object", "$ref": "http://169.254.169.254/latest"}, "refer to a place in this schema"),
    ({"type": "object", "$ref": "file:///etc/passwd"}, "refer to a place in this schema"),
    ({"type": "object", "$ref": "#/$defs/none"}, "there is no '#/$defs/none'"),
    ({"type": "object", "$id": "http://127.0.0.1/"}, "parameters.$id: is not supported"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties: is not supported"),
    ({"type": "object", "description": "x" * 20_000}, "at most 16384 bytes"),
    ({"type": "object", "description": "x" * 2**20}, "at most 16384 bytes"),
    ({"type": "object", "description": "\ud800"}, "no valid JSON schema"),
    ({"type": "object", "description": "\x00"}, "without U+0000"),
    (doubling(18), "more than 5000 parts"),
    (deep(60), "nested more than 64 deep"),
    (deep(350), "nested more than 64 deep"),
]


async def test_a_bad_schema_is_refused_and_the_place_named(gateway: Gateway) -> None:
    for schema, words in BAD_SCHEMAS:
        param, message = why(await post(gateway, parameters=schema))
        assert param == "parameters" and words in message, message
    assert (await gateway.admin.get("/tools")).json()["data"] == []


async def test_a_schema_with_definitions_is_taken(gateway: Gateway) -> None:
    place = {"type": "object", "properties": {"lat": {"type": "number"}, "$ref": {"type": "string"}}}
    schema = {"type": "object", "properties": {"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}}}
    made = await gateway.post("/tools", TOOL | {"parameters": schema | {"$defs": {"p": place}}})
    assert made["parameters"]["$defs"] == {"p": place}


BAD_FIELDS: list[tuple[str, Any]] = [
    *[("name", name) for name in ("", "a b", "wéather", "x" * 65, "a\n", "a/b", "a\u200b", "$", 5)],
    *[("url", url) for url in ("ftp://x/", "file:///etc/passwd", "https://a:b@example.com/", "https://x/\n", "x")],
    *[("url", url) for url in ("http://127.0.0.1/", "http://169.254.169.254/", "http://[::1]/", "http://10.0.0.1")],
    ("description", ""),
    ("description", "a\x00b"),
    ("description", "a\ud800b"),
    ("timeout_s", 0),
    ("timeout_s", 3600),
    ("max_result_bytes", 2**30),
    ("max_rounds", 0),
    ("is_enabled", "yes"),
    *[("credential", {"header": header, "secret": "s"}) for header in ("Host", "a b", "X:Y", "Content-Length", "")],
    *[("credential", {"secret": secret}) for secret in ("", "a\r\nX-Evil: 1", "é", " a", "a" * 5000)],
    ("credential", {"header": "X-Tiergate-Tenant", "secret": "s"}),
    ("credential", "secret"),
    ("secret", "s"),
]


async def test_bad_fields_are_named(gateway: Gateway) -> None:
    for field, value in BAD_FIELDS:
        param, message = why(await post(gateway, **{field: value}))
        assert param.split(".")[0] == field, message
    assert (await gateway.admin.get("/tools")).json()["data"] == []


async def test_a_tool_that_moves_to_another_server_does_not_take_its_secret_along(gateway: Gateway) -> None:
    made = await gateway.post("/tools", TOOL | {"credential": {"secret": SECRET}})
    path = f"/tools/{made['id']}"
    assert (await gateway.admin.patch(path, json={"url": "https://tools.example.com/v2"})).status_code == 200
    for elsewhere in ("https://evil.example.com/", "http://tools.example.com/", "https://tools.example.com:444/"):
        assert why(await gateway.admin.patch(path, json={"url": elsewhere}))[0] == "credential"
    assert (await gateway.admin.get(path)).json()["url"] == "https://tools.example.com/v2"
    moved = await gateway.admin.patch(path, json={"url": "https://evil.example.com/", "credential": None})
    assert moved.json()["credential_header"] is None
    fresh = await gateway.admin.patch(path, json={"url": "https://x.example.com/", "credential": {"secret": "s"}})
    assert fresh.json()["credential_header"] == "Authorization"


async def test_the_operator_names_the_servers_that_tools_may_be_at(tmp_path: Path, valkey: ValkeyProcess) -> None:
    settings = make_settings(
        tmp_path,
        valkey.url,
        tool_hosts=("tools.example.com", "*.apis.example.com:8443", "127.0.0.1:81", "[::1]"),
        outbound_private_networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")),
    )
    async with running_gateway(settings) as gateway:
        good = ("https://tools.example.com./x", "http://TOOLS.example.com:81/", "http://a.apis.example.com:8443/")
        for number, url in enumerate((*good, "http://127.0.0.1:81/", "http://[::1]/")):
            await gateway.post("/tools", TOOL | {"url": url, "name": f"t{number}"})
        bad = ("https://apis.example.com:8443/", "https://a.apis.example.com/", "https://tools.example.com.evil.org/")
        for url in (*bad, "https://xtools.example.com/", "http://127.0.0.1:82/", "http://127.0.0.2:81/"):
            param, message = why(await gateway.admin.post("/tools", json=TOOL | {"url": url}))
            assert param == "url" and "may not be at" in message
