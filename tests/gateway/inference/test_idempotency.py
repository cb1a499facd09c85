"""`Idempotency-Key`: one request, one bill, one answer, however often it is sent."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.inference.test_endings import LONG
from tests.support.gateways import Gateway, durable_events, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 5}
PATH = "/chat/completions"


def named(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}])
async def test_the_second_gets_the_bytes_of_the_first_and_one_is_billed(
    gateway: Gateway, key: str, fields: dict[str, Any]
) -> None:
    async with gateway.client(key) as client:
        first = await client.post(PATH, json=BODY | fields, headers=named("a"))
        again = await client.post(PATH, json=BODY | fields, headers=named("a"))
        other = await client.post(PATH, json=BODY | fields, headers=named("b"))
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 200), again.text
    assert again.content == first.content != other.content
    assert again.headers["idempotent-replayed"] == "true" and "idempotent-replayed" not in first.headers
    for name in ("content-type", "x-tiergate-model", "x-ratelimit-limit-requests"):
        assert again.headers.get(name) == first.headers.get(name)
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(durable_events(gateway)) == 2


async def test_a_key_belongs_to_one_request_of_one_tenant(gateway: Gateway, key: str) -> None:
    stranger = await gateway.make_key()
    async with gateway.client(key) as client, gateway.client(stranger) as another:
        first = await client.post(PATH, json=BODY, headers=named("a"))
        changed = await client.post(PATH, json=BODY | {"max_tokens": 6}, headers=named("a"))
        assert (changed.status_code, changed.json()["error"]["code"]) == (422, "idempotency_key_reused")
        theirs = await another.post(PATH, json=BODY | {"max_tokens": 6}, headers=named("a"))
        assert theirs.status_code == 200 and "idempotent-replayed" not in theirs.headers
        assert (await client.post(PATH, json=BODY, headers=named("a"))).content == first.content


async def test_a_request_that_was_refused_frees_its_key(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        for refused in (BODY | {"max_tokens": 5000}, BODY | {"model": "none"}, BODY | {"n": 0}):
            assert (await client.post(PATH, json=refused, headers=named("a"))).status_code in (400, 404)

        async def is_free() -> bool:
            return (await client.post(PATH, json=BODY, headers=named("a"))).status_code == 200

        assert await is_free()


@pytest.mark.parametrize("key_sent", ["", "a" * 256, "a\tb"])
async def test_a_key_that_is_none_is_refused(gateway: Gateway, key: str, key_sent: str) -> None:
    async with gateway.client(key) as client:
        reply = await client.post(PATH, json=BODY, headers=named(key_sent))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_the_first_goes_on_without_its_client_and_meanwhile_the_second_waits(gateway: Gateway, key: str) -> None:
    body = LONG | {"stream": True}
    async with gateway.client(key) as client:
        async with client.stream("POST", PATH, json=body, headers=named("a")) as first:
            beginning = await anext(first.aiter_bytes())
            second = await client.post(PATH, json=body, headers=named("a"))
            assert (second.status_code, second.json()["error"]["code"]) == (409, "idempotency_key_in_use")
            assert second.headers["retry-after"] == "1"
        await eventually(lambda: durable_events(gateway))
        again = await client.post(PATH, json=body, headers=named("a"))
        while again.status_code == 409:
            again = await client.post(PATH, json=body, headers=named("a"))
    assert again.content.startswith(beginning) and again.content.endswith(b"data: [DONE]\n\n")
    (event,) = durable_events(gateway)
    assert event.status == "ok"


async def test_without_redis_only_requests_with_a_key_are_refused(tmp_path: Path) -> None:
    async with running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9")) as gateway:
        async with gateway.client(await gateway.make_key()) as client:
            refused = await client.post(PATH, json=BODY, headers=named("a"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "idempotency_unavailable")
            assert refused.headers["retry-after"]
            assert (await client.post(PATH, json=BODY)).status_code == 404
        posted = await gateway.admin.post("/tenants", json={"name": "t", "tier": "free"}, headers=named("a"))
        assert posted.status_code == 503


async def test_what_an_administrator_posts_is_made_once(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, valkey.url)) as gateway:
        admin, sent = gateway.admin, {"name": "acme", "tier": "free"}
        first = await admin.post("/tenants", json=sent, headers=named("a"))
        again = await admin.post("/tenants", json=sent, headers=named("a"))
        assert (first.status_code, again.status_code) == (201, 201), again.text
        assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        changed = await admin.post("/tenants", json=sent | {"name": "bolt"}, headers=named("a"))
        assert changed.status_code == 422
        refused = await admin.post("/tenants", json=sent, headers=named("b"))
        assert refused.status_code == 409
        draft = {"tenant_id": first.json()["id"], "name": "k", "scopes": ["tenant-admin"]}
        keys = [await admin.post("/keys", json=draft, headers=named("c")) for _ in range(2)]
        assert keys[0].json()["key"] == keys[1].json()["key"]
        stranger = {"Authorization": f"Bearer {keys[0].json()['key']}"} | named("c")
        theirs = await admin.post("/keys", json=draft, headers=stranger)
        assert theirs.json() != keys[0].json()
        # What a key may not ask for any more, it is not told again either.
        made = await admin.post("/keys", json=draft, headers=stranger | named("d"))
        own = {"Authorization": f"Bearer {made.json()['key']}"} | named("e")
        assert (await admin.post("/keys", json=draft, headers=own)).status_code == 201
        await admin.patch(f"/keys/{made.json()['id']}", json={"allowed_networks": ["192.0.2.0/24"]})
        assert (await admin.post("/keys", json=draft, headers=own)).status_code == 403


async def test_an_upload_takes_no_key(tmp_path: Path) -> None:
    async with running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9")) as gateway:
        key = await gateway.make_key()
        async with gateway.client(key) as client:
            sent = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}
            reply = await client.post("/files", headers=named("a"), **sent)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Idempotency-Key")
