"""The pages about money, the audit, health and settings in a real browser: at a desk and on a phone, light and dark,
with a keyboard alone, and without scripts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.clock import utc_now
from protocol.counts import AdmissionCount, GatewayCounts
from tests.gateway.dashboard.test_console_browser import tab_to
from tests.support.accessibility import assert_well_shown
from tests.support.browser import open_tab
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MODEL, MoneyScene, Owner

WIDE = "漢" * 60 + "שלום 🚀 " + "w" * 50


async def seed(money: MoneyScene) -> list[str]:
    """Something on every page; the paths of them."""
    gateway, now = money.gateway, utc_now()
    wide_id = (await gateway.post("/tenants", {"name": WIDE, "tier": "pro"}))["id"]
    wide = Owner(str(wide_id), "", "")
    account = {"tax_name": "VAT", "tax_basis_points": 1900, "recipient": f"{WIDE}\n1 Road"}
    await gateway.admin.put(f"/billing-accounts/{wide.id}", json=account)
    await gateway.post("/credits", {"tenant_id": wide.id, "amount_nanousd": 123_456_789, "note": "שלום <b>"})
    money.use(wide, num=30)
    may = await money.final(wide)
    await gateway.post(f"/invoices/{may}/credit-notes", {"net_nanousd": 1, "reason": "an outage"})
    money.use(wide, at=datetime(2026, 5, 20, tzinfo=UTC))
    money.use(wide, at=datetime(2026, 6, 2, tzinfo=UTC))
    june = await money.draft(wide, "2026-06")
    soon = (now + timedelta(days=9)).isoformat()
    for path, body in (
        ("/prices", {"model_id": MODEL, "prompt_nanousd": 7, "completion_nanousd": 1, "valid_from": soon}),
        ("/prices/surcharges", {"model_id": MODEL, "token_nanousd": 3}),
        ("/prices/discounts", {"tier": "pro", "basis_points": 100}),
    ):
        await gateway.post(path, body)
    hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    money.use(wide, at=hour)
    counts = (AdmissionCount(int(hour.timestamp()), wide.id, 9, 9),)
    money.store.insert_counts([GatewayCounts(gateway="g", admissions=counts)])
    return [
        "/dashboard/invoices",
        "/dashboard/invoices/new",
        f"/dashboard/invoices/{may}",
        f"/dashboard/invoices/{may}/lines/1",
        f"/dashboard/invoices/{may}/credit-note",
        f"/dashboard/invoices/{june}",
        f"/dashboard/invoices/{june}/finalize",
        f"/dashboard/accounts/{wide.id}",
        f"/dashboard/accounts/{wide.id}/edit",
        f"/dashboard/accounts/{wide.id}/credit",
        "/dashboard/prices",
        "/dashboard/prices/history",
        f"/dashboard/prices/new?model={MODEL}",
        "/dashboard/prices/new-surcharge",
        "/dashboard/prices/new-discount",
        "/dashboard/prices/rerate",
        "/dashboard/reconciliation",
        "/dashboard/reconciliation?all=yes",
        "/dashboard/audit",
        "/dashboard/health",
        "/dashboard/settings",
    ]


async def test_every_page_is_well_shown(chromium: str, money: MoneyScene, tmp_path: Path) -> None:
    paths = await seed(money)
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(money.gateway.origin, ADMIN_KEY, "/dashboard/invoices")
        for path in paths:
            await tab.go(f"{money.gateway.origin}{path}")
            await assert_well_shown(tab)
            unreachable = "[...document.querySelectorAll('.scroll')].filter(each => each.tabIndex != 0).length"
            assert await tab.evaluate(unreachable) == 0, path
        assert tab.complaints == []


async def test_a_draft_becomes_final_by_keyboard_alone(chromium: str, money: MoneyScene, tmp_path: Path) -> None:
    money.use(money.acme)
    invoice_id = await money.draft(money.acme)
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(money.gateway.origin, ADMIN_KEY, f"/dashboard/invoices/{invoice_id}")
        await tab_to(tab, f"a[href$='{invoice_id}/finalize']")
        await tab.press("Enter", leads_on=True)
        await tab_to(tab, "main button")
        await tab.press("Enter", leads_on=True)
        assert "Invoice INV-000001" in await tab.evaluate("document.querySelector('h1').innerText")
        assert "final" in await tab.evaluate("document.querySelector('[role=status]').innerText")
        await tab_to(tab, "a[href$='/lines/1']")
        await tab.press("Enter", leads_on=True)
        await tab_to(tab, "tbody a[href^='/dashboard/requests/']")
        await tab.press("Enter", leads_on=True)
        assert await tab.evaluate("document.querySelector('h1').innerText") == "Request"
        assert tab.complaints == []


async def test_without_scripts_a_price_is_changed_after_its_preview(
    chromium: str, money: MoneyScene, tmp_path: Path
) -> None:
    money.use(money.acme, at=utc_now() - timedelta(days=2))
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(money.gateway.origin, ADMIN_KEY, f"/dashboard/prices/new?model={MODEL}")
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.resize(390)
        await tab.fill("#f-prompt_nanousd", "2000")
        await tab.click("main button")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert "$0.60" in await tab.evaluate("document.querySelector('.totals').innerText")
        await tab.click("main button")
        assert "$2,000.000" in await tab.evaluate("document.querySelector('main').innerText")
        assert tab.complaints == []
