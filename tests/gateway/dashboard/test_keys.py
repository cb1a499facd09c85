import re
from datetime import timedelta
from html import escape
from uuid import uuid4

import httpx
import pytest

from gateway.clock import utc_now
from gateway.dashboard.keys.once import seal_key, unseal_key
from gateway.dashboard.notices import NOTICES
from gateway.peppers import Peppers
from tests.support.consoles import BAD_NAMES, Fields, Visit, audited, visit
from tests.support.gateways import ADMIN_KEY, Gateway

NEW = "/dashboard/keys/new"


def secret_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store", reply.text
    found = re.search(r'id="new-key">(tg-[^<]+)<', reply.text)
    assert found is not None
    return found[1]


async def make(visitor: Visit, path: str, fields: Fields | None = None, **typed: str) -> httpx.Response:
    """The page with the new key, to which the form's answer leads."""
    reply = await visitor.send(path, fields, **typed)
    assert reply.status_code == 303, reply.text
    return await visitor.http.get(reply.headers["location"])


def path_of(reply: httpx.Response) -> str:
    found = re.search(r'href="(/dashboard/keys/[0-9a-f-]{36})"', reply.text)
    assert found is not None
    return found[1]


async def is_let_in(gateway: Gateway, key: str) -> bool:
    async with gateway.client(key) as client:
        return (await client.get("/models")).status_code == 200


async def test_a_key_is_made_shown_once_changed_rotated_and_revoked(gateway: Gateway, admin: Visit) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    fields = {"allowed_networks": "127.0.0.0/8\n\n2001:db8::/32", "limits.concurrency": "3", "scopes": ["inference"]}
    made = await make(admin, f"{NEW}?tenant={tenant['id']}", fields, name="for the shop")
    key, path = secret_of(made), path_of(made)
    assert await is_let_in(gateway, key)
    page = await admin.page(path)
    assert key not in page and "127.0.0.0/8, 2001:db8::/32" in page and "acme" in page and "Requests at a time" in page

    ends = (utc_now() + timedelta(days=30)).strftime("%Y-%m-%dT12:00")
    changed = {"scopes": ["inference", "usage"], "allowed_networks": "", "limits.concurrency": "4"}
    reply = await admin.send(f"{path}/edit", changed, name="renamed", expires_at=ends)
    assert reply.headers["location"] == f"{path}?notice=key-changed"
    [row] = await audited(gateway, "key.change")
    assert row["detail"] == {
        "name": "renamed",
        "scopes": ["inference", "usage"],
        "allowed_networks": None,
        "expires_at": f"{ends}:00+00:00",
        "limits": {"concurrency": 4},
    }

    rotated = secret_of(await make(admin, f"{path}/rotate", overlap_s="86400"))
    assert rotated != key and await is_let_in(gateway, rotated) and await is_let_in(gateway, key)
    assert "The key before it works until" in await admin.page(path)
    newest = secret_of(await make(admin, f"{path}/rotate", overlap_s="0"))
    assert await is_let_in(gateway, newest) and not await is_let_in(gateway, key)

    reply = await admin.send(f"{path}/revoke")
    assert reply.headers["location"] == f"{path}?notice=key-revoked"
    assert NOTICES["key-revoked"] in await admin.page(reply.headers["location"])
    assert not await is_let_in(gateway, newest)
    assert len(await audited(gateway, "key.rotate")) == 2 and len(await audited(gateway, "key.revoke")) == 1
    assert (await admin.http.get(f"{path}/edit")).status_code == 404
    assert "renamed" in await admin.page(f"/dashboard/keys?state=revoked&tenant={tenant['id']}")
    assert "renamed" not in await admin.page(f"/dashboard/keys?tenant={tenant['id']}")


async def test_an_expiry_is_typed_and_shown_in_the_visitors_zone(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    year = utc_now().year + 2
    made = await make(admin, f"{NEW}?tz=Asia/Tokyo", name="k", tenant_id="acme", expires_at=f"{year}-07-01T09:00")
    # The form is sent to the page itself, and so in its zone.
    path = path_of(made)
    assert f"1 Jul {year}, 00:00" in await admin.page(path)
    assert f"1 Jul {year}, 09:00" in await admin.page(f"{path}?tz=Asia/Tokyo")
    # Sent back as it was shown it changes nothing, in any zone.
    assert (await admin.send(f"{path}/edit?tz=America/New_York")).status_code == 303
    assert await audited(gateway, "key.change") == []


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_any_name_is_shown_as_it_is(gateway: Gateway, admin: Visit, name: str) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    made = await make(admin, NEW, name=name, tenant_id="acme")
    secret_of(made)
    for page in (made.text, await admin.page(path_of(made)), await admin.page("/dashboard/keys")):
        assert escape(name, quote=False) in page.replace("&#34;", '"').replace("&#39;", "'")
        assert "<script>" not in page and "<img" not in page


@pytest.mark.parametrize(
    ("fields", "wrong", "told"),
    [
        ({"name": ""}, "name", "This is needed."),
        ({"scopes": []}, "scopes", "at least 1"),
        ({"scopes": ["everything"]}, "scopes", "Should be"),
        ({"allowed_networks": "127.0.0.0/8\nnowhere"}, "allowed_networks", "CIDR"),
        ({"expires_at": "2001-01-01T00:00"}, "expires_at", "in the future"),
        ({"expires_at": "tomorrow"}, "expires_at", "ISO 8601"),
        ({"tenant_id": "nobody"}, "tenant_id", "whole name"),
        ({"limits.tokens_per_minute": "-5"}, "limits.tokens_per_minute", "greater than or equal to 0"),
    ],
)
async def test_what_cannot_be_is_told_at_its_field(
    gateway: Gateway, admin: Visit, fields: dict[str, str | list[str]], wrong: str, told: str
) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    before = len(await audited(gateway, "key.create"))
    reply = await admin.send(NEW, {"name": "kept", "tenant_id": "acme", "allowed_models": "auto", **fields})
    assert reply.status_code == 400, reply.text
    assert told in reply.text.partition(f'id="p-{wrong}">')[2].partition("</p>")[0]
    assert "auto</textarea>" in reply.text
    assert len(await audited(gateway, "key.create")) == before


async def test_a_stale_form_of_a_key_is_refused_and_loses_nothing(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = path_of(await make(admin, NEW, name="k", tenant_id="acme"))
    old = await admin.page(f"{path}/edit")
    await gateway.admin.patch(f"/keys/{path.rpartition('/')[2]}", json={"scopes": ["usage"], "name": "theirs"})
    reply = await admin.submit(old, f"{path}/edit", {"name": "mine", "allowed_models": "auto"})
    assert reply.status_code == 409 and "Now it is \u201cusage\u201d; you typed \u201cinference\u201d." in reply.text
    assert (await admin.submit(reply.text, f"{path}/edit", {})).status_code == 303
    await gateway.admin.delete(f"/keys/{path.rpartition('/')[2]}")
    gone = await admin.submit(reply.text, f"{path}/edit", {"name": "never mind"})
    assert gone.status_code == 404 and "never mind" in gone.text


@pytest.mark.parametrize("verb", ["edit", "rotate", "revoke"])
async def test_nothing_is_done_by_get_nor_without_the_pages_token(gateway: Gateway, admin: Visit, verb: str) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    path = path_of(await make(admin, NEW, name="k", tenant_id="acme"))
    page = await admin.page(f"{path}/{verb}")
    assert (await admin.submit(page, f"{path}/{verb}", {"token": "made up", "name": "x"})).status_code == 403
    for action in ("key.change", "key.rotate", "key.revoke"):
        assert await audited(gateway, action) == []


async def test_the_last_administrators_key_stays(gateway: Gateway, admin: Visit) -> None:
    [own] = (await gateway.admin.get("/keys")).json()["data"]
    path = f"/dashboard/keys/{own['id']}"
    assert "ends your visit" in await admin.page(f"{path}/revoke")
    reply = await admin.send(f"{path}/revoke")
    assert reply.status_code == 409 and "the last key that may administer" in reply.text.replace("This", "this")


async def test_a_tenants_administrator_has_its_own_keys_and_no_others(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "other", "tier": "pro"})
    others = path_of(await make(admin, NEW, name="others key", tenant_id="other"))
    key = await gateway.make_key(scopes=("tenant-admin",))
    async with visit(gateway, key) as own:
        form = await own.page(NEW)
        assert "platform-admin" not in form and 'name="tenant_id"' not in form
        made = await make(own, NEW, {"tenant_id": "other"}, name="mine")
        listed = await own.page("/dashboard/keys")
        assert "mine" in listed and "others key" not in listed
        assert (await audited(gateway, "key.create"))[-1]["tenant_id"] != (await audited(gateway, "tenant.create"))[0][
            "tenant_id"
        ]
        reply = await own.send(NEW, {"scopes": ["platform-admin"]}, name="more")
        assert reply.status_code == 403 and 'value="more"' in reply.text
        assert (await own.send(f"{path_of(made)}/revoke")).status_code == 303
        for path in (others, f"/dashboard/keys/{uuid4()}", "/dashboard/keys/x"):
            for verb in ("", "/edit", "/rotate", "/revoke"):
                assert (await own.http.get(f"{path}{verb}")).status_code == 404
        token = re.search(r'name="token" value="([^"]+)"', form)
        assert token is not None
        for verb in ("edit", "rotate", "revoke"):
            sent = {"token": token[1], "name": "x", "scopes": "usage", "overlap_s": "0"}
            assert (await own.http.post(f"{others}/{verb}", data=sent)).status_code == 404
    assert await audited(gateway, "key.rotate") == []


async def test_a_key_that_may_only_look_sees_no_keys(gateway: Gateway) -> None:
    async with visit(gateway, await gateway.make_key(scopes=("usage",))) as looker:
        for path in ("/dashboard/keys", NEW, "/dashboard/users", "/dashboard/users/new", "/dashboard/tiers"):
            assert (await looker.http.get(path)).status_code == 403
        assert "/dashboard/keys" not in await looker.page("/dashboard/zone")


async def test_to_load_the_page_of_a_new_key_again_makes_no_other(gateway: Gateway, admin: Visit) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    reply = await admin.send(NEW, name="k", tenant_id="acme")
    place = reply.headers["location"]
    cookie = reply.headers["set-cookie"]
    assert all(each in cookie for each in ("HttpOnly", "SameSite=strict", f"Path={place}", "Max-Age=60"))
    num_made = len(await audited(gateway, "key.create"))
    page = await admin.http.get(place)
    key = secret_of(page)
    assert key not in cookie and key not in place and f"{gateway.origin}/v1" in page.text
    assert secret_of(await admin.http.get(place)) == key
    assert len(await audited(gateway, "key.create")) == num_made

    # Another visit with the same cookie, and this one without it, see nothing.
    async with visit(gateway, ADMIN_KEY) as other:
        other.http.cookies.set("tiergate_new_key", admin.http.cookies["tiergate_new_key"])
        reply = await other.http.get(place)
        assert reply.status_code == 303 and reply.headers["location"].endswith("?notice=key-shown")
    admin.http.cookies.delete("tiergate_new_key")
    assert NOTICES["key-shown"] in (await admin.http.get(place, follow_redirects=True)).text


def test_a_sealed_key_is_over_after_a_minute() -> None:
    key_id, visit_id, now = uuid4(), uuid4(), utc_now()
    sealed = seal_key("tg-a", visit_id=visit_id, key_id=key_id, pepper="p", now=now)
    places = {"visit_id": visit_id, "key_id": key_id, "peppers": Peppers("p")}
    assert unseal_key(sealed, **places, now=now + timedelta(seconds=59)) == "tg-a"
    assert unseal_key(sealed, **places, now=now + timedelta(seconds=60)) is None
    for wrong in ({"visit_id": uuid4()}, {"key_id": uuid4()}, {"peppers": Peppers("q")}):
        assert unseal_key(sealed, **(places | wrong), now=now) is None
    for nonsense in ("", "x", "\u00e9", sealed[:-4], sealed[4:]):
        assert unseal_key(nonsense, **places, now=now) is None
