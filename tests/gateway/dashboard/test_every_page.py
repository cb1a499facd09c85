"""Every page of the console is reached by links from the overview, and none of them leads nowhere."""

import re

from starlette.routing import compile_path

from gateway.clock import utc_now
from gateway.dashboard.routes import PAGES
from tests.gateway.dashboard.test_money_browser import seed
from tests.support.consoles import visit
from tests.support.crawling import by_path, crawl
from tests.support.money_scenes import MODEL, MoneyScene

NOT_LINKED = {
    # What scripts read.
    "/fleet/events",
    "/playground/answer",
    # A replica has them, and there is none here (test_fleet.py).
    "/fleet/drain",
    "/fleet/undrain",
    # The form that makes a key leads to it (test_keys.py).
    "/keys/{key_id}/secret",
}


async def operator_of(money: MoneyScene) -> str:
    """The key of one who may do everything, with something of every kind to look at."""
    await seed(money)
    gateway = money.gateway
    acme = money.acme.id
    money.use(money.acme, at=utc_now())
    await gateway.post("/users", {"tenant_id": acme, "user_id": "zoë", "limits": {"requests_per_minute": 5}})
    await gateway.post("/adapters", {"tenant_id": acme, "name": "voice", "variants": {MODEL: "voice"}})
    for name in ("gold", "tin"):
        await gateway.post("/tiers", {"name": name, "copy_of": "pro"})
    retired = await gateway.admin.patch("/tiers/tin", json={"is_retired": True})
    assert retired.status_code == 200, retired.text
    suspended = await gateway.post("/tenants", {"name": "quiet", "tier": "free"})
    reply = await gateway.admin.patch(f"/tenants/{suspended['id']}", json={"is_suspended": True})
    assert reply.status_code == 200, reply.text
    listed = (await gateway.admin.get("/tenants", params={"limit": 1000})).json()["data"]
    [platform] = [tenant["id"] for tenant in listed if tenant["is_platform"]]
    made = await gateway.post(
        "/keys", {"tenant_id": platform, "name": "operator", "scopes": ["platform-admin", "inference"]}
    )
    return str(made["key"])


async def test_links_lead_from_the_overview_to_every_page(money: MoneyScene) -> None:
    key = await operator_of(money)
    # Another visit by the same key can be ended.
    async with visit(money.gateway, key), visit(money.gateway, key) as visitor:
        found = await crawl(visitor.http, by_path, per_kind=8)
        assert found.broken == []
        for urls in found.pages.values():
            for url in urls:
                page = await visitor.page(url)
                assert len(re.findall(r"<h1\b", page)) == 1, url
    reached = {url.partition("?")[0] for urls in (*found.pages.values(), found.files) for url in urls}
    patterns = {page.path: compile_path(f"/dashboard{page.path}")[0] for page in PAGES}
    missing = {path for path, pattern in patterns.items() if not any(map(pattern.match, reached))}
    assert missing == NOT_LINKED


async def test_a_tenants_administrator_meets_no_link_that_is_not_for_him(money: MoneyScene) -> None:
    await operator_of(money)
    body = {"tenant_id": money.acme.id, "name": "both", "scopes": ["tenant-admin", "inference"]}
    key = str((await money.gateway.post("/keys", body))["key"])
    for each in (key, money.acme.reader):
        async with visit(money.gateway, each) as visitor:
            found = await crawl(visitor.http, by_path, per_kind=8)
            assert found.broken == []
            for urls in found.pages.values():
                for url in urls:
                    assert money.other.id not in await visitor.page(url), url
