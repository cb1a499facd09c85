"""The console's actions in a real browser: by keyboard, on a phone, without scripts, and as axe sees them."""

from pathlib import Path

from tests.support.accessibility import assert_well_shown
from tests.support.browser import Tab, open_tab
from tests.support.gateways import ADMIN_KEY, Gateway

NAME = "\u05e9\u05dc\u05d5\u05dd <b> " + "W" * 80


async def tab_to(tab: Tab, selector: str) -> None:
    """With the Tab key, as one who has no mouse."""
    for _ in range(80):
        if await tab.evaluate(f"document.activeElement.matches({selector!r})"):
            return
        await tab.press("Tab")
    raise AssertionError(f"the Tab key does not lead to {selector}")


async def test_a_tenant_is_made_and_edited_by_keyboard_alone(chromium: str, gateway: Gateway, tmp_path: Path) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/tenants")
        await tab_to(tab, "a[href='/dashboard/tenants/new']")
        await tab.press("Enter", leads_on=True)
        await tab_to(tab, "button[type=submit]:not(.quiet)")
        await tab.press("Enter", leads_on=True)
        await tab.until("document.activeElement.name === 'name'")  # The wrong field has the focus.
        await assert_well_shown(tab)
        await tab.call("Input.insertText", text=NAME)
        await tab_to(tab, "#f-tier")
        await tab.press("p")
        await tab_to(tab, "main button")
        await tab.press("Enter", leads_on=True)
        path = await tab.evaluate("location.pathname")
        assert await tab.evaluate("document.querySelector('h1').innerText") == NAME
        assert "is made" in await tab.evaluate("document.querySelector('[role=status]').innerText")
        await assert_well_shown(tab)
        for page in ("/dashboard/tenants", f"{path}/edit", f"{path}/suspend", f"{path}/delete"):
            await tab.go(f"{gateway.origin}{page}")
            await assert_well_shown(tab)
        # The name that was refused is told by the browser itself.
        assert all("400" in complaint for complaint in tab.complaints), tab.complaints


async def test_without_scripts_a_tenant_is_made_suspended_and_deleted(
    chromium: str, gateway: Gateway, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/tenants/new")
        await tab.fill("#f-name", "acme")
        await tab.evaluate("document.querySelector('#f-tier').value = 'free'")
        await tab.click("main button")
        for verb in ("suspend", "resume", "delete"):
            await tab.click(f"a[href$='/{verb}']")
            await tab.click("main button")
        assert await tab.evaluate("document.querySelector('.status.error').innerText.startsWith('deleted')")
        assert tab.complaints == []


async def test_a_tenants_administrator_makes_rotates_and_revokes_a_key(
    chromium: str, gateway: Gateway, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(gateway.origin, await gateway.make_key(scopes=("tenant-admin",)), "/dashboard/keys")
        await assert_well_shown(tab)
        await tab.click("a[href^='/dashboard/keys/new']")
        await assert_well_shown(tab)
        await tab.fill("#f-name", NAME)
        await tab.fill("#f-allowed_networks", "nowhere")
        await tab.click("main button")
        await tab.until("document.activeElement.name === 'allowed_networks'")
        await tab.fill("#f-allowed_networks", "127.0.0.0/8")
        await tab.click("main button")
        key = await tab.evaluate("document.getElementById('new-key').innerText")
        assert key not in await tab.evaluate("location.href")
        async with gateway.client(key) as client:
            assert (await client.get("/models")).status_code == 200
        # 127.0.0.1 is a secure place, so that there is a clipboard, which takes a click of the visitor.
        assert not await tab.evaluate("document.querySelector('button[data-copy]').hidden")
        await assert_well_shown(tab)
        await tab.click("main .buttons a")
        path = await tab.evaluate("location.pathname")
        assert await tab.evaluate("document.querySelector('h1').innerText") == NAME
        for verb in ("", "/edit", "/rotate", "/revoke"):
            await tab.go(f"{gateway.origin}{path}{verb}")
            await assert_well_shown(tab)
        await tab.click("main button")
        assert "is revoked" in await tab.evaluate("document.querySelector('[role=status]').innerText")
        async with gateway.client(key) as client:
            assert (await client.get("/models")).status_code == 401
        # The network that is none is told by the browser itself.
        assert all("400" in complaint for complaint in tab.complaints), tab.complaints


async def test_end_users_and_tiers_by_keyboard(chromium: str, gateway: Gateway, tmp_path: Path) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/users/new")
        await assert_well_shown(tab)
        for selector, text in (("#f-user_id", NAME), ("#f-tenant_id", "acme"), ("[name='limits.concurrency']", "3")):
            await tab_to(tab, selector)
            await tab.call("Input.insertText", text=text)
        await tab.press("Enter", leads_on=True)
        assert await tab.evaluate("document.querySelector('h1').innerText") == NAME
        await assert_well_shown(tab)
        await tab.go(f"{gateway.origin}/dashboard/tiers")
        await assert_well_shown(tab)
        await tab_to(tab, "a[href='/dashboard/tiers/pro']")
        await tab.press("Enter", leads_on=True)
        await assert_well_shown(tab)
        await tab_to(tab, "a[href*='copy_of=pro']")
        await tab.press("Enter", leads_on=True)
        await assert_well_shown(tab)
        await tab_to(tab, "#f-name")
        await tab.call("Input.insertText", text="pro-2")
        await tab.press("Enter", leads_on=True)
        assert await tab.evaluate("location.pathname") == "/dashboard/tiers/pro-2"
        for page in ("/dashboard/users", "/dashboard/tiers/pro-2/edit", "/dashboard/tiers/pro-2/retire"):
            await tab.go(f"{gateway.origin}{page}")
            await assert_well_shown(tab)
        assert tab.complaints == []
