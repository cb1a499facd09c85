"""From the red number of refused requests on the overview to whose they were and by which limit."""

import re
from html import escape
from pathlib import Path
from uuid import UUID

from gateway.clock import utc_now
from protocol.counts import GatewayCounts, RefusalCount
from tests.support.accessibility import assert_well_shown
from tests.support.browser import open_tab
from tests.support.consoles import visit
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import HOSTILE, MoneyScene

PATH = "/dashboard/requests/refused"


async def refuse(money: MoneyScene) -> str:
    """Seven requests of acme's, by a key named `shop`, two of the other's, and one of an unknown key. The key's id."""
    made = await money.gateway.post("/keys", {"tenant_id": money.acme.id, "name": "shop"})
    minute_s = int(utc_now().timestamp()) // 60 * 60
    refusals = (
        RefusalCount(minute_s, money.acme.id, made["id"], "requests_per_minute", 429, 7),
        RefusalCount(minute_s, money.other.id, str(UUID(int=1)), "budget", 429, 2),
        RefusalCount(minute_s, "", "", "invalid_api_key", 401, 1),
    )
    money.store.insert_counts([GatewayCounts(gateway="g", refusals=refusals)])
    return str(made["id"])


async def test_the_overviews_red_number_leads_to_whose_they_were(money: MoneyScene) -> None:
    key_id = await refuse(money)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        overview = await operator.page("/dashboard?range=1h")
        card = overview.partition("<dt>Refused</dt>")[2].partition("</div>")[0]
        found = re.search(r'class="bad"><a href="([^"]+)">10<', card)
        assert found is not None and found[1] == f"{PATH}?range=1h"
        page = await operator.page(found[1])
        first = page.partition("<tbody>")[2].partition("</tr>")[0]
        assert "Requests a minute" in first and ">7<" in first
        assert f'href="/dashboard/keys/{key_id}">shop</a>' in first
        assert (
            escape(HOSTILE, quote=False) in first.replace("&#34;", '"')
            and f"/dashboard/tenants/{money.acme.id}" in first
        )
        assert "invalid_api_key" in page and "not known" in page
        # The second click: the limit, beside what is used of it.
        assert "Requests a minute" in await operator.page(f"/dashboard/tenants/{money.acme.id}")
        assert "shop" not in await operator.page(f"{PATH}?range=1h&tenant={money.other.id}")


async def test_a_tenant_sees_its_own_refused_requests_alone(money: MoneyScene) -> None:
    key_id = await refuse(money)
    async with visit(money.gateway, money.other.reader) as reader:
        page = await reader.page(f"{PATH}?range=1h&tenant={money.acme.id}")
        assert "budget" in page and "requests_per_minute" not in page and key_id not in page
        # It may not look at keys.
        assert "/dashboard/keys/" not in page
    async with visit(money.gateway, money.acme.key) as admin:
        page = await admin.page(PATH)
        assert "shop" in page and "budget" not in page and "invalid_api_key" not in page


async def test_two_clicks_lead_there_in_a_browser(chromium: str, money: MoneyScene, tmp_path: Path) -> None:
    await refuse(money)
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(money.gateway.origin, ADMIN_KEY, "/dashboard?range=1h")
        await assert_well_shown(tab)
        await tab.click("dd.bad a")
        await assert_well_shown(tab)
        await tab.click("td a[href^='/dashboard/tenants/']")
        assert HOSTILE in await tab.evaluate("document.querySelector('h1').innerText")
        assert "Requests a minute" in await tab.evaluate("document.querySelector('main').innerText")
        assert tab.complaints == []
