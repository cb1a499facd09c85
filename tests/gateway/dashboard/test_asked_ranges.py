"""Ranges that are reversed, in the future, ten years long or none at all, on every page that has a range."""

import re
from html import escape, unescape

from tests.support.consoles import Visit, forms_of, visit
from tests.support.gateways import ADMIN_KEY
from tests.support.money_scenes import MoneyScene

PAGES = ("", "/requests", "/requests/refused", "/reconciliation", "/audit")
RANGES = {
    ("2026-03-04", "2026-03-01"): "before",
    ("2126-01-01", "2126-01-03"): "",
    ("2126-01-01", ""): "before",
    ("2016-01-01", "2026-01-01"): "at most",
    ("gestern", ""): "time",
    ("", '"><script>'): "time",
}


async def test_each_is_shown_or_told_and_can_be_mended(money: MoneyScene) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        for path in PAGES:
            for (start, end), told in RANGES.items():
                await _ask(operator, f"/dashboard{path}", start, end, told)


async def _ask(operator: Visit, path: str, start: str, end: str, told: str) -> None:
    asked = {"from": start, "to": end, "tz": "Asia/Tokyo"}
    reply = await operator.http.get(path, params=asked)
    page = reply.text
    assert reply.status_code in (200, 400) and len(re.findall(r"<h1\b", page)) == 1, (path, start, page)
    assert "<script>" not in page
    # What was typed stands in its fields, whatever became of it.
    fields = [form.fields for form in forms_of(page) if "from" in form.fields or "to" in form.fields]
    assert fields and all(fields[0].get(name, [""]) == [value] for name, value in asked.items() if name != "tz"), path
    if reply.status_code == 400:
        alert = unescape(page.partition('role="alert">')[2].partition("</p>")[0])
        assert told and told in alert, (path, start, alert)
        assert fields[0]["tz"] == ["Asia/Tokyo"] and escape(start) in page


async def test_a_tenant_that_is_not_there_can_be_written_anew(money: MoneyScene) -> None:
    async with visit(money.gateway, ADMIN_KEY) as operator:
        page = await operator.page("/dashboard/requests?tenant=nobdy&status=error", status=404)
        [fields] = [form.fields for form in forms_of(page) if "tenant" in form.fields]
        assert fields == {"tenant": ["nobdy"], "status": ["error"]}
