import re
from html import escape

import pytest

from tests.support.consoles import BAD_NAMES, Visit, audited, visit
from tests.support.gateways import Gateway

NEW = "/dashboard/users/new"


async def make(admin: Visit, user_id: str, **limits: str) -> str:
    fields = {f"limits.{name}": value for name, value in limits.items()}
    reply = await admin.send(NEW, {**fields, "user_id": user_id, "tenant_id": "acme"})
    assert reply.status_code == 303, reply.text
    return str(reply.headers["location"].partition("?")[0])


async def test_an_end_user_gets_limits_which_are_changed_and_taken_back(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = await make(admin, "bob", requests_per_minute="60", budget_nanousd_per_month="0.5")
    page = await admin.page(path)
    assert "Used now" in page and 'value="0.5"' in page and "Requests a minute" in page
    reply = await admin.send(path, {"limits.requests_per_minute": "", "limits.concurrency": "2"})
    assert reply.headers["location"] == f"{path}?notice=saved"
    [row] = await audited(gateway, "user.change")
    assert row["detail"]["limits"] == {"budget_nanousd_per_month": 500_000_000, "concurrency": 2}
    assert "requests at a time 2" in await admin.page("/dashboard/users?q=BO")
    old = await admin.page(path)
    reply = await admin.send(f"{path}/delete")
    assert reply.headers["location"] == "/dashboard/users?notice=user-deleted"
    assert len(await audited(gateway, "user.delete")) == 1
    gone = await admin.submit(old, path, {"limits.concurrency": "77"})
    assert gone.status_code == 404 and "77" in gone.text


@pytest.mark.parametrize("name", [*BAD_NAMES, "=1+1", "a b"])
async def test_any_end_user_is_shown_as_it_is(gateway: Gateway, admin: Visit, name: str) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = await make(admin, name, concurrency="1")
    for page in (await admin.page(path), await admin.page("/dashboard/users"), await admin.page(f"{path}/delete")):
        assert escape(name, quote=False) in page.replace("&#34;", '"').replace("&#39;", "'")
        assert "<script>" not in page and "<img" not in page


async def test_what_cannot_be_is_told(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = await make(admin, "bob")
    reply = await admin.send(NEW, {"user_id": "bob", "tenant_id": "acme", "limits.concurrency": "8"})
    assert reply.status_code == 409 and "has limits already" in reply.text and 'value="8"' in reply.text
    reply = await admin.send(path, {"limits.concurrency": "eight"})
    assert reply.status_code == 400 and 'id="p-limits.concurrency"' in reply.text
    old = await admin.page(path)
    await gateway.admin.patch(f"/users/{path.rpartition('/')[2]}", json={"limits": {"concurrency": 5}})
    reply = await admin.submit(old, path, {"limits.concurrency": "6"})
    assert reply.status_code == 409 and "Now it is \u201c5\u201d; you typed \u201c6\u201d." in reply.text


async def test_end_users_of_others_are_not_there(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    theirs = await make(admin, "bob", concurrency="1")
    async with visit(gateway, await gateway.make_key(scopes=("tenant-admin",))) as own:
        made = await own.send(NEW, {"user_id": "mine", "tenant_id": "acme", "limits.concurrency": "1"})
        assert made.status_code == 303
        listed = await own.page("/dashboard/users")
        assert "mine" in listed and "bob" not in listed
        token = re.search(r'name="token" value="([^"]+)"', listed)
        assert token is not None
        for path in (theirs, f"{theirs}/delete"):
            assert (await own.http.get(path)).status_code == 404
            sent = {"token": token[1], "limits.concurrency": "9"}
            assert (await own.http.post(path, data=sent)).status_code == 404
        assert (await own.http.post(theirs, data={})).status_code in (403, 404)
    assert await audited(gateway, "user.change") == await audited(gateway, "user.delete") == []
