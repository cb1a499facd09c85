from html import escape
from uuid import uuid4

import pytest

from gateway.clock import utc_now
from gateway.domain.tenants.models import Tenant
from protocol.ids import new_id
from tests.support.consoles import BAD_NAMES, Visit, audited, visit
from tests.support.gateways import Gateway

NEW = "/dashboard/tenants/new"
NOW = utc_now()


async def make(admin: Visit, name: str, **fields: str) -> str:
    """The path of its page."""
    reply = await admin.send(NEW, fields, name=name, tier="pro")
    assert reply.status_code == 303, reply.text
    path, _, notice = reply.headers["location"].partition("?")
    assert notice == "notice=tenant-made"
    return str(path)


async def test_a_tenant_is_made_changed_suspended_resumed_and_deleted(gateway: Gateway, admin: Visit) -> None:
    path = await make(admin, "acme", **{"limits.concurrency": "5", "limits.budget_nanousd_per_month": "$12.50"})
    page = await admin.page(f"{path}?notice=tenant-made")
    assert "<h1>acme</h1>" in page and "$12.50" in page and "It needs a key" in page
    changed = {"limits.concurrency": "", "limits.tokens_per_day": "1,000,000", "user_limits.concurrency": "2"}
    reply = await admin.send(f"{path}/edit", changed, name="acme two", tier="free", is_local_only="yes")
    assert reply.headers["location"] == f"{path}?notice=saved"
    page = await admin.page(path)
    for told in ("acme two", "local only", "1,000,000", "requests at a time 2", "/dashboard/tiers/free"):
        assert told in page, told
    [row] = await audited(gateway, "tenant.change")
    assert row["detail"] == {
        **{"name": "acme two", "tier": "free", "is_local_only": True},
        "limits": {"concurrency": None, "tokens_per_day": 1_000_000},
        "user_limits": {"concurrency": 2},
    }, "only what was changed"
    for verb, told in (("suspend", "suspended"), ("resume", "let in again"), ("delete", "deleted")):
        assert (await admin.send(f"{path}/{verb}")).status_code == 303
        assert told in await admin.page(f"{path}?notice=tenant-{verb}{'d' if verb.endswith('e') else 'ed'}")
    assert [row["detail"].get("is_suspended") for row in await audited(gateway, "tenant.change")] == [None, True, False]
    assert len(await audited(gateway, "tenant.delete")) == 1
    await admin.page(f"{path}/edit", status=404)
    assert (await admin.http.get("/dashboard/tenants?q=acme")).text.count(f'href="{path}"') == 0
    assert f'href="{path}"' in await admin.page("/dashboard/tenants?state=deleted")


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_any_name_is_shown_as_it_is_and_found_again(admin: Visit, name: str) -> None:
    path = await make(admin, name)
    for page in (await admin.page(path), await admin.page(f"{path}/edit"), await admin.page(f"{path}/delete")):
        assert escape(name, quote=False) in page.replace("&#34;", '"').replace("&#39;", "'")
        assert name not in page or name.isalnum() or "<" not in name
    found = (await admin.http.get("/dashboard/tenants", params={"q": name[:50]})).text
    assert f'href="{path}"' in found


@pytest.mark.parametrize(
    ("fields", "wrong", "told"),
    [
        ({"name": ""}, "name", "This is needed."),
        ({"name": "ok", "tier": ""}, "tier", "This is needed."),
        ({"name": "a\u200bb"}, "name", "cannot be seen"),
        ({"name": "W" * 121}, "name", "at most 120"),
        ({"name": "ok", "tier": "none"}, "tier", "There is no tier"),
        ({"name": "ok", "limits.concurrency": "many"}, "limits.concurrency", "Write a whole number"),
        ({"name": "ok", "limits.concurrency": "-1"}, "limits.concurrency", "greater than or equal to 0"),
        ({"name": "ok", "limits.tokens_per_day": "9" * 30}, "limits.tokens_per_day", "Write a whole number"),
        ({"name": "ok", "limits.budget_nanousd_per_month": "1.2.3"}, "limits.budget_nanousd_per_month", "dollars"),
        ({"name": "ok", "user_limits.concurrency": "\u00b2"}, "user_limits.concurrency", "Write a whole number"),
    ],
)
async def test_what_cannot_be_is_told_at_its_field_and_nothing_that_was_typed_is_lost(
    gateway: Gateway, admin: Visit, fields: dict[str, str], wrong: str, told: str
) -> None:
    reply = await admin.send(NEW, {"limits.requests_per_minute": "77", "tier": "pro", **fields})
    assert reply.status_code == 400
    field = reply.text.partition(f'id="f-{wrong}"')[2].partition("</div>")[0]
    assert told in field and 'aria-invalid="true"' in field and f'id="p-{wrong}"' in field and "autofocus" in field
    assert 'value="77"' in reply.text
    assert await audited(gateway, "tenant.create") == []


async def test_a_name_that_is_taken_is_told_at_the_field(admin: Visit) -> None:
    await make(admin, "acme")
    reply = await admin.send(NEW, name="acme", tier="pro")
    assert (
        reply.status_code == 409 and "There is already a tenant named" in reply.text.partition('id="p-name"')[2][:200]
    )


async def test_a_stale_form_is_refused_with_both_values_and_can_be_sent_again(gateway: Gateway, admin: Visit) -> None:
    path = await make(admin, "acme")
    old = await admin.page(f"{path}/edit")
    await gateway.admin.patch(f"/tenants/{path.rpartition('/')[2]}", json={"name": "theirs"})
    reply = await admin.submit(old, f"{path}/edit", {"name": "mine", "limits.concurrency": "9"})
    assert reply.status_code == 409
    assert "Now it is \u201ctheirs\u201d; you typed \u201cmine\u201d." in reply.text
    again = await admin.submit(reply.text, f"{path}/edit", {})
    assert again.status_code == 303
    page = await admin.page(path)
    assert "<h1>mine</h1>" in page and "requests at a time 9" in page


async def test_a_form_of_a_tenant_that_was_deleted_gives_back_what_was_typed(gateway: Gateway, admin: Visit) -> None:
    path = await make(admin, "acme")
    old = await admin.page(f"{path}/edit")
    await gateway.admin.delete(f"/tenants/{path.rpartition('/')[2]}")
    reply = await admin.submit(old, f"{path}/edit", {"name": "a long name that I thought of"})
    assert reply.status_code == 404 and "was deleted" in reply.text and "a long name that I thought of" in reply.text


@pytest.mark.parametrize("verb", ["edit", "suspend", "resume", "delete"])
async def test_nothing_is_done_by_get_nor_without_the_pages_token(gateway: Gateway, admin: Visit, verb: str) -> None:
    path = await make(admin, "acme")
    page = await admin.page(f"{path}/{verb}")
    for token in ("", "made up"):
        reply = await admin.submit(page, f"{path}/{verb}", {"token": token, "name": "changed"})
        assert reply.status_code == 403 and "nothing was done" in reply.text
    crossing = await admin.http.post(f"{path}/{verb}", data={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert crossing.status_code == 403
    assert await audited(gateway, "tenant.change") == await audited(gateway, "tenant.delete") == []


async def test_the_platforms_own_tenant_stays(gateway: Gateway, admin: Visit) -> None:
    [own] = [each for each in (await gateway.admin.get("/tenants")).json()["data"] if each["is_platform"]]
    assert "/delete" not in await admin.page(f"/dashboard/tenants/{own['id']}")
    reply = await admin.send(f"/dashboard/tenants/{own['id']}/delete")
    assert reply.status_code == 409 and "cannot be deleted" in reply.text


async def test_a_tenants_administrator_sees_its_own_and_may_set_its_users_limits(
    gateway: Gateway, admin: Visit
) -> None:
    other = await make(admin, "other")
    key = await gateway.make_key(scopes=("tenant-admin",))
    async with visit(gateway, key) as own:
        reply = await own.http.get("/dashboard/tenants")
        path = reply.headers["location"]
        page = await own.page(path)
        assert "Limits of end users" in page and "/suspend" not in page and "New key" in page
        reply = await own.send(f"{path}/edit", {"user_limits.concurrency": "3", "name": "x", "limits.concurrency": "9"})
        assert reply.status_code == 303
        page = await own.page(path)
        assert "requests at a time 3" in page and "In place of its tier's</dt><dd>none" in page, "and nothing else"
        for verb in ("", "/edit"):
            assert (await own.http.get(f"{other}{verb}")).status_code == 404
            assert (await own.http.get(f"/dashboard/tenants/{uuid4()}{verb}")).status_code == 404
        for denied in (NEW, f"{path}/suspend", f"{path}/delete", f"{other}/delete"):
            assert (await own.http.get(denied)).status_code == 403
            assert (await own.http.post(denied)).status_code == 403


async def test_a_key_that_may_only_look_is_offered_no_action(gateway: Gateway) -> None:
    key = await gateway.make_key(scopes=("usage",))
    async with visit(gateway, key) as looker:
        path = (await looker.http.get("/dashboard/tenants")).headers["location"]
        page = await looker.page(path)
        assert "Requests a minute" in page
        for action in ("/edit", "New key", "/dashboard/users", "/dashboard/audit"):
            assert action not in page
        assert (await looker.http.get(f"{path}/edit")).status_code == 403


async def test_two_thousand_tenants_are_leafed_through_and_found(gateway: Gateway, admin: Visit) -> None:
    async with gateway.services.sessions.begin() as session:
        session.add_all(
            Tenant(id=new_id(NOW), name=f"tenant {i:04}", tier="free", created_at=NOW, suspended_at=None)
            for i in range(2000)
        )
    page = await admin.page("/dashboard/tenants?q=tenant")
    assert "2,000 found" in page and "Page 1 of 40" in page and "tenant 0049" in page and "tenant 0050" not in page
    assert "tenant 1999" in await admin.page("/dashboard/tenants?q=tenant&page=40")
    for number in ("999999", "0", "-1", "x", "\u00b2"):
        assert "tenant " in await admin.page(f"/dashboard/tenants?q=tenant&page={number}")
    assert "1 found" in await admin.page("/dashboard/tenants?q=TENANT 0777")
    assert "0 found" in await admin.page("/dashboard/tenants?q=%25")


async def test_what_becomes_of_sessions_is_chosen_and_not_over_anothers_change(gateway: Gateway, admin: Visit) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = f"/dashboard/tenants/{tenant['id']}"
    page = await admin.page(f"{path}/sessions")
    chosen = {"overflow": "summary", "is_encrypted": "yes"}
    assert (await admin.submit(page, f"{path}/sessions", chosen)).headers["location"] == f"{path}?notice=saved"
    shown = await admin.page(path)
    assert "are summed up" in shown and "is sealed" in shown
    stale = await admin.submit(page, f"{path}/sessions", chosen)
    assert stale.status_code == 409 and "changed elsewhere" in stale.text
    assert (await admin.send(f"{path}/sessions", {"overflow": "nowhere"})).status_code == 400
    assert (await admin.send(f"{path}/sessions")).status_code == 303
    [row] = await audited(gateway, "sessions.change")
    assert row["detail"] == {"overflow": "summary", "is_encrypted": True}
    async with visit(gateway, await gateway.make_key(scopes=("tenant-admin",))) as other:
        await other.page(f"{path}/sessions", status=404)
