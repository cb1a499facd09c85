import re
from datetime import timedelta
from uuid import uuid4

import pytest

from gateway.clock import utc_now
from protocol.counts import AdmissionCount, GatewayCounts
from tests.support.consoles import visit
from tests.support.events import make_event
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MoneyScene

PATH = "/dashboard/reconciliation"


async def test_hours_that_do_not_add_up_are_marked_by_tenant_with_what_to_do(money: MoneyScene) -> None:
    hour = utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    money.use(money.acme, num=3, at=hour)
    money.use(money.other, num=2, at=hour)
    money.store.insert([make_event("lost-tenant", tenant_id=str(uuid4()), timestamp=hour)])
    told = {money.acme.id: 3, money.other.id: 7}
    counts = [AdmissionCount(int(hour.timestamp()), tenant, num, num) for tenant, num in told.items()]
    money.store.insert_counts([GatewayCounts(gateway="g", admissions=tuple(counts))])
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await operator.page(PATH)
        rows = re.findall(r"<tr[^>]*>.*?</tr>", page, re.DOTALL)
        [missing] = [row for row in rows if 'class="wrong"' in row and ">missing<" in row]
        assert "other" in missing and '<td class="number">5</td>' in missing
        assert sum('class="wrong"' in row and ">unknown tenant<" in row for row in rows) == 1
        assert "&lt;script&gt;" not in page, "an hour that adds up is no difference"
        assert "What to do" in page and '<dd class="bad">6</dd>' in page
        everything = await operator.page(f"{PATH}?all=yes")
        assert "&lt;script&gt;" in everything and "adds up" in everything
        # The number leads to its requests.
        [link] = re.findall(r'href="(/dashboard/requests[^"]+)"', missing)
        assert (await operator.page(link.replace("&amp;", "&"))).count('<th scope="row"><a href') == 2


@pytest.mark.parametrize("query", ["from=2026-02-01&to=2026-01-01", "from=2016-01-01&to=2026-01-01", "from=soon"])
async def test_a_time_that_cannot_be_asked_is_told(money: MoneyScene, query: str) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        assert 'role="alert"' in await operator.page(f"{PATH}?{query}", status=400)
        assert "Every hour adds up" in await operator.page(f"{PATH}?from=2190-01-01&to=2190-01-02")


async def test_reconciliation_is_the_operators(money: MoneyScene) -> None:
    async with visit(money.gateway, money.acme.key) as owner:
        await owner.page(PATH, status=403)
        assert PATH not in await owner.page("/dashboard/invoices")
