import pytest

from tests.support.consoles import Visit, audited, visit
from tests.support.gateways import Gateway

NEW = "/dashboard/tiers/new"


async def test_a_tier_is_copied_changed_retired_and_brought_back(gateway: Gateway, admin: Visit) -> None:
    await gateway.admin.patch("/tiers/pro", json={"large_share": 0.25, "budget_nanousd_per_month": 10**10})
    reply = await admin.send(f"{NEW}?copy_of=pro", name="pro-2", weight="2.5")
    assert reply.headers["location"] == "/dashboard/tiers/pro-2?notice=tier-made", reply.text
    pro, copy = [(await gateway.admin.get(f"/tiers/{name}")).json() for name in ("pro", "pro-2")]
    assert copy == {**pro, "name": "pro-2", "weight": 2.5, "version": 1}
    changed = {
        "requests_per_minute": "1,000",
        "tokens_per_day": "",
        "budget_nanousd_per_month": "0.000000001",
        "on_saturation": "reject",
        "priority": "0",
        "is_hedged": "yes",
        "complexity_threshold": "0.125",
    }
    reply = await admin.send("/dashboard/tiers/pro-2/edit", changed)
    assert reply.headers["location"] == "/dashboard/tiers/pro-2?notice=saved", reply.text
    now = (await gateway.admin.get("/tiers/pro-2")).json()
    assert (now["requests_per_minute"], now["budget_nanousd_per_month"], now["on_saturation"]) == (1000, 1, "reject")
    assert (now["priority"], now["is_hedged"], now["complexity_threshold"]) == (0, True, 0.125)
    detail = (await audited(gateway, "tier.change"))[-1]["detail"]
    assert set(detail) == {name for name in changed if name != "tokens_per_day" or copy["tokens_per_day"] is not None}

    await gateway.post("/tenants", {"name": "acme", "tier": "pro-2"})
    assert "1 tenant</a>" in await admin.page("/dashboard/tiers/pro-2")
    assert "acme" in await admin.page("/dashboard/tenants?tier=pro-2")
    assert (await admin.send("/dashboard/tiers/pro-2/retire")).status_code == 303
    assert "retired" in await admin.page("/dashboard/tiers")
    assert '<option value="pro-2">' not in await admin.page("/dashboard/tenants/new")
    assert (await admin.send("/dashboard/tiers/pro-2/return")).status_code == 303
    assert '<option value="pro-2">' in await admin.page("/dashboard/tenants/new")
    assert [row["detail"].get("is_retired") for row in await audited(gateway, "tier.change")][-2:] == [True, False]


@pytest.mark.parametrize(
    ("fields", "wrong", "told"),
    [
        ({"name": ""}, "name", "This is needed."),
        ({"name": "<b>"}, "name", "Write letters, digits"),
        ({"name": "new"}, "name", "choose another name"),
        ({"name": "pro"}, "name", "already a tier"),
        ({"default_max_tokens": ""}, "default_max_tokens", "whole number"),
        ({"weight": "0"}, "weight", "greater than 0"),
        ({"large_share": "half"}, "large_share", "Write a number"),
        ({"large_share": "1.5"}, "large_share", "less than or equal to 1"),
        ({"allowed_pools": "nowhere"}, "allowed_pools", "nothing serves a pool"),
        ({"on_saturation": "explode"}, "on_saturation", "Should be"),
        ({"priority": "9"}, "priority", "less than or equal to 3"),
    ],
)
async def test_what_cannot_be_is_told_at_its_field(
    gateway: Gateway, admin: Visit, fields: dict[str, str], wrong: str, told: str
) -> None:
    reply = await admin.send(NEW, {"name": "new-one", "concurrency": "77", **fields})
    assert reply.status_code in (400, 409)
    assert told in reply.text.partition(f'id="p-{wrong}">')[2].partition("</p>")[0].replace("Allowed_pools: ", "")
    assert 'value="77"' in reply.text
    assert await audited(gateway, "tier.create") == []


async def test_a_stale_form_of_a_tier_is_refused(gateway: Gateway, admin: Visit) -> None:
    old = await admin.page("/dashboard/tiers/pro/edit")
    await gateway.admin.patch("/tiers/pro", json={"concurrency": 11})
    reply = await admin.submit(old, "/dashboard/tiers/pro/edit", {"concurrency": "12"})
    assert reply.status_code == 409 and "Now it is \u201c11\u201d; you typed \u201c12\u201d." in reply.text


async def test_a_tenants_administrator_sees_tiers_and_changes_none(gateway: Gateway) -> None:
    async with visit(gateway, await gateway.make_key(scopes=("tenant-admin",))) as own:
        listed, one = await own.page("/dashboard/tiers"), await own.page("/dashboard/tiers/pro")
        assert "New tier" not in listed and "Tenants</th>" not in listed
        assert "/edit" not in one and "tenants?tier" not in one
        for path in (NEW, "/dashboard/tiers/pro/edit", "/dashboard/tiers/pro/retire", "/dashboard/tiers/pro/return"):
            assert (await own.http.get(path)).status_code == (await own.http.post(path)).status_code == 403
        assert (await own.http.get("/dashboard/tiers/none")).status_code == 404
    assert await audited(gateway, "tier.change") == []
