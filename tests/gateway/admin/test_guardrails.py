"""Guardrails over REST: whose they are, what is refused, stale edits, and that a secret goes in and never comes out."""

import sqlite3
from contextlib import closing
from typing import Any

import httpx

from tests.support.gateways import Gateway

SECRET = "Bearer t0p-s3cret-xyzzy"
GUARDRAIL: dict[str, Any] = {"name": "words", "url": "https://moderation.example.com/v1/moderations"}


async def tenants_admin(gateway: Gateway) -> httpx.AsyncClient:
    key = await gateway.make_key(scopes=("tenant-admin",))
    return httpx.AsyncClient(
        base_url=str(gateway.admin.base_url), headers={"Authorization": f"Bearer {key}"}, timeout=30
    )


async def test_one_is_made_shown_changed_and_deleted_and_its_secret_never_shown(gateway: Gateway) -> None:
    made = await gateway.post("/guardrails", GUARDRAIL | {"authorization": SECRET})
    assert made["tenant_id"] is None and made["has_authorization"] is True and made["is_enabled"] is True
    assert (made["checks"], made["on_failure"], made["deadline_ms"]) == ("both", "closed", 2000)
    assert (made["window_chars"], made["categories"], made["model"]) == (500, [], None)
    path = f"/guardrails/{made['id']}"
    change = {"on_failure": "open", "categories": ["hate"], "version": made["version"]}
    changed = await gateway.admin.patch(path, json=change)
    assert changed.status_code == 200, changed.text
    stale = await gateway.admin.patch(path, json=change)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_version")
    listed, shown = await gateway.admin.get("/guardrails"), await gateway.admin.get(path)
    assert shown.json() == changed.json() == listed.json()["data"][0]
    assert shown.json()["on_failure"] == "open" and shown.json()["has_authorization"] is True
    assert (await gateway.admin.delete(path)).status_code == 204
    assert (await gateway.admin.get(path)).status_code == 404
    audit = await gateway.admin.get("/audit", params={"limit": 100})
    entries = [each for each in audit.json()["data"] if each["object_id"] == made["id"]]
    assert [each["action"] for each in entries] == ["guardrail.create", "guardrail.change", "guardrail.delete"]
    for reply in (listed, shown, audit):
        assert "xyzzy" not in reply.text
    with closing(sqlite3.connect(gateway.services.settings.data_dir / "tiergate.db")) as file:
        assert "xyzzy" not in "".join(file.iterdump())


async def test_a_secret_does_not_follow_its_url_to_another_server(gateway: Gateway) -> None:
    made = await gateway.post("/guardrails", GUARDRAIL | {"authorization": SECRET})
    path = f"/guardrails/{made['id']}"
    refused = await gateway.admin.patch(path, json={"url": "https://evil.example.com/"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "authorization")
    same = await gateway.admin.patch(path, json={"url": "https://moderation.example.com/v2"})
    assert same.json()["has_authorization"] is True
    moved = await gateway.admin.patch(path, json={"url": "https://evil.example.com/", "authorization": None})
    assert moved.json()["has_authorization"] is False


BAD: list[tuple[str, Any]] = [
    ("url", "http://127.0.0.1/"),
    ("url", "http://[::1]/"),
    ("url", "http://169.254.169.254/latest/meta-data"),
    ("url", "http://10.0.0.1/"),
    ("url", "ftp://example.com/"),
    ("url", "https://user:pass@example.com/"),
    ("url", "no url"),
    ("url", "https://example.com/" + "x" * 2000),
    ("name", "two words"),
    ("name", ""),
    ("checks", "sometimes"),
    ("on_failure", "ajar"),
    ("deadline_ms", 0),
    ("deadline_ms", 30_001),
    ("deadline_ms", True),
    ("window_chars", 0),
    ("window_chars", 10**6),
    ("categories", ["\u202e"]),
    ("categories", ["x"] * 65),
    ("authorization", "two\nlines"),
    ("authorization", ""),
    ("surprise", 1),
]


async def test_what_cannot_be_is_refused_by_name(gateway: Gateway) -> None:
    for field, value in BAD:
        reply = await gateway.admin.post("/guardrails", json=GUARDRAIL | {field: value})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"].split(".")[0] == field
    assert (await gateway.admin.get("/guardrails")).json()["data"] == []


async def test_a_tenant_sees_and_changes_its_own_and_knows_of_everybodys(gateway: Gateway) -> None:
    everybodys = await gateway.post("/guardrails", GUARDRAIL | {"authorization": SECRET})
    async with await tenants_admin(gateway) as one, await tenants_admin(gateway) as other:
        mine = (await one.post("/guardrails", json=GUARDRAIL)).json()
        assert mine["tenant_id"] is not None and mine["url"] == GUARDRAIL["url"]
        assert (await one.post("/guardrails", json=GUARDRAIL)).status_code == 409
        shown = {row["id"]: row for row in (await one.get("/guardrails")).json()["data"]}
        assert set(shown) == {everybodys["id"], mine["id"]}
        assert (shown[everybodys["id"]]["url"], shown[everybodys["id"]]["has_authorization"]) == (None, None)
        assert [row["id"] for row in (await other.get("/guardrails")).json()["data"]] == [everybodys["id"]]
        for admin, guardrail in ((other, mine), (one, everybodys)):
            path = f"/guardrails/{guardrail['id']}"
            assert (await admin.patch(path, json={"is_enabled": False})).status_code == 404
            assert (await admin.delete(path)).status_code == 404
        for i in range(7):
            assert (await one.post("/guardrails", json=GUARDRAIL | {"name": f"more-{i}"})).status_code == 201
        assert (await one.post("/guardrails", json=GUARDRAIL | {"name": "one-too-many"})).status_code == 409
        assert (await gateway.admin.delete(f"/tenants/{mine['tenant_id']}")).status_code == 204
    left = (await gateway.admin.get("/guardrails")).json()["data"]
    assert [row["id"] for row in left] == [everybodys["id"]]
