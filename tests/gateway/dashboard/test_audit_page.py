import csv
import io
import re
from html import unescape

import pytest

from tests.support.consoles import visit
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MoneyScene

PATH = "/dashboard/audit"


def actions(page: str) -> list[str]:
    return re.findall(r'<td><a href="[^"]+">([a-z_.]+)</a></td>', page)


async def test_entries_are_shown_newest_first_filtered_by_pages_and_as_csv(
    money: MoneyScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.dashboard.audit.PAGE_SIZE", 2)
    money.use(money.acme)
    invoice_id = await money.final(money.acme)
    note = {"tenant_id": money.acme.id, "amount_nanousd": 5, "note": "=1+1 <script>"}
    await money.gateway.post("/credits", note)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        path, seen = PATH, []
        while path:
            page = await operator.page(path)
            seen += actions(page)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = unescape(older[1]) if older else ""
        assert seen == (await money.actions())[::-1]
        found = await operator.page(f"{PATH}?action=invoice")
        assert actions(found) == ["invoice.finalize", "invoice.draft"]
        assert f'href="/dashboard/invoices/{invoice_id}"' in found
        assert actions(await operator.page(f"{PATH}?object={invoice_id}")) == ["invoice.finalize", "invoice.draft"]
        credit = await operator.page(f"{PATH}?action=credit.grant")
        assert "<script>" not in credit and "=1+1 &lt;script&gt;" in credit and "$0.000000005" in credit
        [actor] = set(re.findall(r"actor=([0-9a-f-]{36})", credit))
        assert actions(await operator.page(f"{PATH}?actor={actor}&action=credit")) == ["credit.grant"]
        assert "No such entries" in await operator.page(f"{PATH}?from=2190-01-01")
        reply = await operator.http.get(f"{PATH}.csv?tenant={money.acme.id}")
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert "attachment" in reply.headers["content-disposition"]
    assert rows[0]["action"] == "credit.grant" and {row["tenant_id"] for row in rows} == {money.acme.id}


async def test_a_tenant_sees_its_own_entries_alone(money: MoneyScene) -> None:
    async with visit(money.gateway, money.acme.key) as owner:
        for query in ("", f"?tenant={money.other.id}", f"?object={money.other.id}"):
            page = await owner.page(f"{PATH}{query}")
            assert f">{money.other.id}<" not in page and ">other<" not in page
            told = (await owner.http.get(f"{PATH}.csv{query}")).text
            assert money.other.id not in told
        assert "tenant.create" in actions(await owner.page(PATH))
    async with visit(money.gateway, money.acme.reader) as reader:
        await reader.page(PATH, status=403)


@pytest.mark.parametrize("query", ["from=soon", "from=2026-02-01&to=2026-01-01", "after=x"])
async def test_what_cannot_be_asked_is_told(money: MoneyScene, query: str) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        assert 'role="alert"' in await operator.page(f"{PATH}?{query}", status=400)
