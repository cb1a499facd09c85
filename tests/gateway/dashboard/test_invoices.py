"""Invoices, credit and accounts in the console of a real gateway, over a real ClickHouse."""

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from gateway.clock import utc_now
from gateway.domain.tenants.models import Tenant
from tests.support.consoles import Visit, visit
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MoneyScene

INVOICES = "/dashboard/invoices"


def amounts(page: str) -> list[str]:
    """Of the page's tables."""
    return re.findall(r'<td class="number">(−?\$[0-9.,]+)</td>', page)


async def submit(visitor: Visit, path: str, **typed: str) -> str:
    """The page that it leads to."""
    reply = await visitor.send(path, **typed)
    assert reply.status_code == 303, reply.text
    return await visitor.page(reply.headers["location"])


async def test_an_operator_goes_from_a_draft_to_a_final_invoice_and_takes_a_part_back(money: MoneyScene) -> None:
    money.use(money.acme)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        account = f"/dashboard/accounts/{money.acme.id}"
        await submit(operator, f"{account}/edit", tax_name="VAT", tax_basis_points="19", time_zone="Europe/Berlin")
        page = await submit(operator, f"{account}/credit", amount_nanousd="0.10", note="a gift")
        assert "$0.10" in page and "a gift" in page and "19.00 %" in page
        page = await submit(operator, f"{INVOICES}/new", tenant_id=money.acme.id, month="2026-05")
        assert 'role="status">The draft is made.' in page and "$0.714" in page
        [invoice_id] = set(re.findall(r"/invoices/([0-9a-f-]{36})/finalize", page))
        money.use(money.acme, num=1, at=datetime(2026, 5, 20, tzinfo=UTC))
        page = await submit(operator, f"{INVOICES}/{invoice_id}/recalculate")
        assert "$0.952" in page
        page = await submit(operator, f"{INVOICES}/{invoice_id}/finalize")
        assert "Invoice INV-000001" in page and "$0.852" in page, "less the credit"
        page = await submit(operator, f"{INVOICES}/{invoice_id}/credit-note", net_nanousd="0.5", reason="an outage")
        assert "Credit note CN-000001" in page and "−$0.595" in page and "an outage" in page
        assert "CN-000001" in await operator.page(f"{INVOICES}/{invoice_id}")
        assert "$0.595" in await operator.page(account)
    assert (await money.actions())[-6:] == [
        "billing_account.change",
        "credit.grant",
        "invoice.draft",
        "invoice.recalculate",
        "invoice.finalize",
        "credit_note.finalize",
    ]


async def test_two_clicks_lead_from_a_line_to_one_of_its_requests(money: MoneyScene) -> None:
    ids = money.use(money.acme)
    invoice_id = await money.final(money.acme)
    async with visit(money.gateway, money.acme.key) as owner:
        page = await owner.page(f"{INVOICES}/{invoice_id}")
        lines = re.findall(rf'href="({INVOICES}/{invoice_id}/lines/\d+)"', page)
        assert len(lines) == 2
        for line in lines:
            requests = re.findall(r'href="(/dashboard/requests/[^"]+)"', await owner.page(line))
            assert [path.rpartition("/")[2] for path in requests] == ids
            assert ids[0] in await owner.page(requests[0])
        for kind, start in (("html", "<!doctype html>"), ("csv", "invoice"), ("pdf", "%PDF")):
            reply = await owner.http.get(f"{INVOICES}/{invoice_id}/document.{kind}")
            assert reply.status_code == 200 and reply.text.lower().startswith(start.lower()), reply.text[:40]
            assert "attachment" in reply.headers["content-disposition"]
        assert (await owner.http.get(f"{INVOICES}/{invoice_id}/document.exe")).status_code == 404


async def test_a_line_of_many_requests_is_shown_by_pages(money: MoneyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dashboard.invoices.LINE_PAGE_SIZE", 2)
    ids = money.use(money.acme, num=5)
    invoice_id = await money.final(money.acme)
    async with visit(money.gateway, money.acme.key) as owner:
        path, seen = f"{INVOICES}/{invoice_id}/lines/1", []
        while path:
            page = await owner.page(path)
            seen += re.findall(r'href="/dashboard/requests/([^"]+)"', page)
            more = re.search(r'href="([^"]+)" rel="next"', page)
            path = more[1] if more else ""
    assert seen == ids


async def test_what_comes_late_is_an_adjustment_of_the_next_invoice(money: MoneyScene) -> None:
    money.use(money.acme)
    await money.final(money.acme)
    money.use(money.acme, num=2, at=datetime(2026, 5, 30, tzinfo=UTC))
    money.use(money.acme, num=1, at=datetime(2026, 6, 2, tzinfo=UTC))
    later = await money.final(money.acme, "2026-06")
    async with visit(money.gateway, money.acme.key) as owner:
        page = await owner.page(f"{INVOICES}/{later}")
    usual, _, adjustments = page.partition("<h2>Adjustments")
    assert amounts(usual)[::2] == ["$0.10", "$0.10"] and amounts(adjustments)[::2] == ["$0.20", "$0.20"]
    assert adjustments.count("<td>2026-05</td>") == 2 == usual.count("<td>2026-06</td>")


async def test_amounts_of_a_table_have_the_same_decimals(money: MoneyScene) -> None:
    money.use(money.acme)
    invoice_id = await money.draft(money.acme)
    account = {"tax_name": "VAT", "tax_basis_points": 733}
    await money.gateway.admin.put(f"/billing-accounts/{money.acme.id}", json=account)
    await money.gateway.admin.post(f"/invoices/{invoice_id}/recalculate")
    await money.draft(money.other)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        for path in (INVOICES, f"{INVOICES}/{invoice_id}"):
            shown = amounts(await operator.page(path))
            assert len(shown) >= 2 and len({len(each.partition(".")[2]) for each in shown if "," not in each}) <= 2
        assert len({len(each.partition(".")[2]) for each in amounts(await operator.page(INVOICES))}) == 1


async def test_a_tenant_sees_its_own_final_invoices_and_does_nothing(money: MoneyScene) -> None:
    money.use(money.acme)
    money.use(money.other, num=1)
    final, others = await money.final(money.acme), await money.final(money.other)
    draft = await money.draft(money.acme, "2026-06")
    async with visit(money.gateway, money.acme.key) as owner:
        page = await owner.page(f"{INVOICES}?tenant={money.other.id}")
        assert final in page and others not in page and draft not in page and "New draft" not in page
        shown = await owner.page(f"{INVOICES}/{final}")
        for verb in ("finalize", "recalculate", "delete", "credit-note"):
            assert f"/{verb}" not in shown
            assert (await owner.http.get(f"{INVOICES}/{final}/{verb}")).status_code == 403
            assert (await owner.http.post(f"{INVOICES}/{final}/{verb}", data={})).status_code == 403
        assert (await owner.http.get(f"/dashboard/accounts/{money.acme.id}")).status_code == 200
        for path in (
            f"{INVOICES}/{others}",
            f"{INVOICES}/{others}/lines/1",
            f"{INVOICES}/{others}/document.csv",
            f"{INVOICES}/{draft}",
            f"/dashboard/accounts/{money.other.id}",
            f"{INVOICES}/{uuid4()}",
            f"{INVOICES}/nonsense",
            f"{INVOICES}/{final}/lines/99",
        ):
            reply = await owner.http.get(path)
            assert reply.status_code == 404, path
    async with visit(money.gateway, money.acme.reader) as reader:
        assert (await reader.http.get(INVOICES)).status_code == 403
        assert INVOICES not in await reader.page("/dashboard")


async def test_a_final_invoice_that_was_a_draft_when_the_page_was_made_is_told(money: MoneyScene) -> None:
    money.use(money.acme)
    invoice_id = await money.draft(money.acme)
    path = f"{INVOICES}/{invoice_id}/finalize"
    async with visit(money.gateway, ADMIN_KEY) as operator:
        shown = await operator.page(path)
        await money.gateway.admin.post(f"/invoices/{invoice_id}/recalculate")
        stale = await operator.submit(shown, path, {})
        assert stale.status_code == 409 and "calculated anew while you looked" in stale.text
        await money.gateway.admin.post(f"/invoices/{invoice_id}/finalize")
        late = await operator.submit(stale.text, path, {})
        assert late.status_code == 409 and "INV-000001 is final" in late.text
        deleted = await operator.http.get(f"{INVOICES}/{invoice_id}/delete")
        assert deleted.status_code == 409


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"month": "2026-13"}, "2026-03"),
        ({"month": "may"}, "month"),
        ({"month": "2199-01"}, "has not begun"),
        ({"start": "2026-05-02", "end": "2026-05-01"}, "before end"),
        ({"start": "yesterday"}, "write a time"),
        ({"tenant_id": ""}, "hoose a tenant"),
        ({"tenant_id": "00000000-0000-7000-8000-000000000000"}, "here is no tenant"),
        ({"month": "2026-05", "start": "2026-05-01"}, "either month"),
    ],
)
async def test_a_draft_that_cannot_be_made_is_told_and_nothing_typed_is_lost(
    money: MoneyScene, typed: dict[str, str], told: str
) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        reply = await operator.send(f"{INVOICES}/new", {"tenant_id": money.acme.id, **typed})
        assert reply.status_code in (400, 409) and told in reply.text.replace("Write", "write"), reply.text
        assert all(f'value="{value}"' in reply.text for value in typed.values() if len(value) < 30)
    assert "invoice.draft" not in await money.actions()


@pytest.mark.parametrize("amount", ["", "much", "1e3", "0.0000000001", "-5", "١"])
async def test_credit_is_a_number_of_dollars(money: MoneyScene, amount: str) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        path = f"/dashboard/accounts/{money.acme.id}/credit"
        reply = await operator.send(path, amount_nanousd=amount, note='<b>"note')
        assert reply.status_code == 400 and 'aria-invalid="true"' in reply.text
        assert "&lt;b&gt;&#34;note" in reply.text, "what was typed stands"
    assert "credit.grant" not in await money.actions()


async def test_nothing_is_done_without_the_pages_own_token_or_by_get(money: MoneyScene) -> None:
    money.use(money.acme)
    invoice_id = await money.draft(money.acme)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        for verb in ("finalize", "recalculate", "delete"):
            await operator.page(f"{INVOICES}/{invoice_id}/{verb}")
            reply = await operator.http.post(f"{INVOICES}/{invoice_id}/{verb}", data={"token": "made up"})
            assert reply.status_code == 403
        assert "draft" in await operator.page(f"{INVOICES}/{invoice_id}")


async def test_what_others_named_is_never_markup(money: MoneyScene) -> None:
    money.use(money.acme)
    invoice_id = await money.draft(money.acme)
    async with visit(money.gateway, ADMIN_KEY) as operator:
        for path in (INVOICES, f"{INVOICES}/{invoice_id}", f"{INVOICES}/{invoice_id}/lines/1", f"{INVOICES}/new"):
            page = await operator.page(path)
            assert "<script>" not in page
            assert "&lt;script&gt;" in page or "/lines/" in path


async def test_of_thousands_of_tenants_one_is_chosen_by_its_name(money: MoneyScene) -> None:
    money.use(money.other)
    now = utc_now()
    async with money.gateway.services.sessions.begin() as session:
        session.add_all(Tenant(id=uuid4(), name=f"tenant {n}", tier="pro", created_at=now) for n in range(2000))
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await submit(operator, f"{INVOICES}/new", tenant_id="other", month="2026-05")
        assert "$0.60" in page
        assert len(amounts(await operator.page(f"{INVOICES}?tenant=other"))) == 5
        assert amounts(await operator.page(f"{INVOICES}?tenant={money.acme.id}")) == []
        for path in (INVOICES, f"{INVOICES}/new", "/dashboard/audit", "/dashboard/requests"):
            assert len(await operator.page(path)) < 50_000, path
        assert "there is no tenant" in (await operator.page(f"{INVOICES}?tenant=nobody", status=404)).lower()
        unknown = await operator.send(f"{INVOICES}/new", tenant_id="nobody", month="2026-05")
        assert unknown.status_code == 400 and 'value="nobody"' in unknown.text
