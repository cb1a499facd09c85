"""A visit that ends while its visitor types loses nothing of what was typed."""

from pathlib import Path

from tests.support.accessibility import assert_well_shown
from tests.support.browser import open_tab
from tests.support.consoles import Visit, audited, forms_of
from tests.support.gateways import ADMIN_KEY, Gateway

NEW = "/dashboard/tenants/new"
NAME = '<b>"acme" \u6f22 \U0001f680'


async def test_a_form_of_a_visit_that_ended_is_sent_on_after_the_next_login(gateway: Gateway, admin: Visit) -> None:
    page = await admin.page(NEW)
    admin.http.cookies.clear()
    ended = await admin.submit(page, NEW, {"name": NAME, "tier": "pro", "limits.concurrency": "7"})
    assert ended.status_code == 401 and "<b>" not in ended.text and "Your visit has ended" in ended.text
    assert not await audited(gateway, "tenant.create")
    # In another tab; then the way back, which does nothing yet.
    assert (await admin.http.post("/dashboard/login", data={"key": ADMIN_KEY})).status_code == 303
    [form] = forms_of(ended.text)
    shown = await admin.http.post(form.action, data=form.fields)
    assert shown.status_code == 403 and not await audited(gateway, "tenant.create")
    [filled] = [each for each in forms_of(shown.text) if "name" in each.fields]
    assert (filled.fields["name"], filled.fields["limits.concurrency"]) == ([NAME], ["7"])
    assert (await admin.submit(shown.text, NEW, {})).status_code == 303
    [row] = await audited(gateway, "tenant.create")
    assert row["detail"]["name"] == NAME


async def test_what_another_site_sends_is_not_shown(gateway: Gateway, admin: Visit) -> None:
    admin.http.cookies.clear()
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    reply = await admin.http.post(NEW, data={"name": "Pay here"}, headers=headers)
    assert reply.status_code == 303 and reply.headers["location"].startswith("/dashboard/login")


async def test_the_page_of_an_ended_visit_and_a_range_that_is_none_are_well_shown(
    chromium: str, gateway: Gateway, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/audit?from=gestern")
        await assert_well_shown(tab)
        await tab.go(f"{gateway.origin}{NEW}")
        await tab.fill("#f-name", NAME)
        await tab.call("Network.clearBrowserCookies")
        await tab.click("main button")
        await assert_well_shown(tab)
        assert NAME in await tab.evaluate("document.querySelector('main').innerText")
