import csv
import json
from io import StringIO
from typing import Any

import pytest

from tests.support.gateways import Gateway


async def entries(gateway: Gateway, **asked: str) -> list[dict[str, Any]]:
    reply = await gateway.admin.get("/audit", params={"limit": 1000} | asked)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["data"]
    return found


async def test_entries_are_found_by_actor_action_object_and_time(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    other = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["platform-admin"]})
    headers = {"Authorization": f"Bearer {other['key']}"}
    await gateway.admin.patch("/tiers/free", json={"requests_per_minute": 7}, headers=headers)
    everything = await entries(gateway)
    by_other = await entries(gateway, actor_key_id=other["id"])
    assert [each["action"] for each in by_other] == ["tier.change"]
    assert [each["object_id"] for each in await entries(gateway, action="tenant.create")] == [tenant["id"]]
    assert {each["action"] for each in await entries(gateway, action="key")} >= {"key.create"}
    assert await entries(gateway, action="ke") == [] == await entries(gateway, action="%")
    assert [each["action"] for each in await entries(gateway, object_id=tenant["id"])] == ["tenant.create"]
    assert {each["tenant_id"] for each in await entries(gateway, tenant_id=tenant["id"])} == {tenant["id"]}
    at = by_other[0]["at"]
    assert by_other[0] in await entries(gateway, **{"from": at})
    earlier = await entries(gateway, to=at)
    assert by_other[0] not in earlier and len(earlier) < len(everything)


async def test_the_newest_come_first_where_that_is_asked_by_pages_too(gateway: Gateway) -> None:
    for number in range(4):
        await gateway.admin.patch("/tiers/free", json={"requests_per_minute": number + 1})
    everything = [each["id"] for each in await entries(gateway)]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        asked = {"limit": "3", "newest_first": "true"} | after
        page = (await gateway.admin.get("/audit", params=asked)).json()
        seen += [each["id"] for each in page["data"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == everything[::-1]


@pytest.mark.parametrize(
    "asked",
    [
        {"from": "yesterday"},
        {"from": "2026-02-01", "to": "2026-01-01"},
        {"actor_key_id": "me"},
        {"action": "x" * 65},
        {"to": "9999-01-01"},
    ],
)
async def test_a_bad_question_names_its_parameter(gateway: Gateway, asked: dict[str, str]) -> None:
    reply = await gateway.admin.get("/audit", params=asked)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(asked))), reply.text


async def test_an_entry_tells_the_request_its_address_and_what_it_changed(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    reply = await gateway.admin.patch(f"/tenants/{tenant['id']}", json={"tier": "free", "name": "acme"})
    [entry] = await entries(gateway, request_id=reply.headers["x-request-id"])
    assert (entry["action"], entry["address"]) == ("tenant.change", "127.0.0.1")
    assert (entry["before"], entry["after"]) == ({"tier": "pro"}, {"tier": "free"})


async def test_a_tenant_sees_neither_where_operators_are_nor_how_much_others_do(gateway: Gateway) -> None:
    key = await gateway.make_key(scopes=("tenant-admin",))
    async with gateway.client(key) as client:
        made = await client.post(f"{gateway.origin}/admin/v1/keys", json={"name": "own"})
        page = (await client.get(f"{gateway.origin}/admin/v1/audit")).json()["data"]
        exported = (await client.get(f"{gateway.origin}/admin/v1/audit/export")).text
    by_object = {each["object_id"]: each for each in page}
    assert by_object[made.json()["id"]]["address"] == "127.0.0.1"
    assert [each["address"] for each in page if each["object_id"] != made.json()["id"]] == [None] * (len(page) - 1)
    assert {(each["position"], each["hash"]) for each in page} == {(None, None)}
    assert [json.loads(line) for line in exported.splitlines()] == page


async def test_an_export_has_every_entry_in_either_form(gateway: Gateway) -> None:
    await gateway.post("/tenants", {"name": '=1+1, "x"', "tier": "pro"})
    for number in range(3):
        await gateway.admin.patch("/tiers/free", json={"requests_per_minute": number + 1})
    listed = await entries(gateway)
    lines = (await gateway.admin.get("/audit/export")).text.splitlines()
    assert [json.loads(line) for line in lines] == listed
    assert [each["position"] for each in listed] == list(range(1, len(listed) + 1))
    table = await gateway.admin.get("/audit/export", params={"format": "csv", "action": "tier"})
    rows = list(csv.DictReader(StringIO(table.text)))
    assert table.headers["content-type"].startswith("text/csv")
    changes = [each for each in listed if each["action"].startswith("tier")]
    assert [row["id"] for row in rows] == [each["id"] for each in changes]
    assert [json.loads(row["after"]) for row in rows] == [each["after"] for each in changes]
    assert (await gateway.admin.get("/audit/export", params={"format": "xml"})).status_code == 400
