"""The dashboard in a real browser: it renders, its style applies, and nothing of it is refused by its own policy."""

from pathlib import Path

from tests.support.accessibility import assert_accessible
from tests.support.browser import open_tab
from tests.support.dashboards import Site

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


async def test_a_visitor_logs_in_sees_the_charts_and_logs_out(chromium: str, site: Site, tmp_path: Path) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.go(f"{site.origin}/dashboard")
        assert await tab.evaluate("location.pathname") == "/dashboard/login"
        await tab.type("tg-aaaaaaaa-wrong")
        await tab.click("button")
        assert "wrong or was revoked" in await tab.evaluate("document.querySelector('[role=alert]').innerText")
        await tab.type(site.admin_key)
        await tab.click("button")
        assert await tab.evaluate("location.pathname") == "/dashboard"
        assert await tab.evaluate("[...document.querySelectorAll('svg.chart')].length") == 1
        heights = "[...document.querySelectorAll('.bar')].map(bar => bar.getBoundingClientRect().height)"
        assert min(await tab.evaluate(heights)) > 1
        assert await tab.evaluate("document.cookie") == "", "scripts cannot read the cookie"
        await tab.click("main nav a[href*='30d']")
        assert "range=30d" in await tab.evaluate("location.search")
        await tab.click("header button")
        await tab.go(f"{site.origin}/dashboard")
        assert await tab.evaluate("location.pathname") == "/dashboard/login"
        # The wrong key's own answer is the one thing that the browser notes.
        assert all("401" in complaint for complaint in tab.complaints), tab.complaints


async def test_the_page_follows_the_visitors_colour_scheme_and_fits_a_phone(
    chromium: str, site: Site, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.go(f"{site.origin}/dashboard/login")
        await tab.type(site.acme.key)
        await tab.click("button")
        light = await tab.evaluate(BACKGROUND)
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert await tab.evaluate(BACKGROUND) != light
        metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        await tab.call("Emulation.setDeviceMetricsOverride", **metrics)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390


async def test_two_clicks_lead_from_a_failure_to_its_reason_and_the_keyboard_scrolls_tables(
    chromium: str, site: Site, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.go(f"{site.origin}/dashboard?range=7d")
        await tab.type(site.acme.key)
        await tab.click("button")
        assert await tab.evaluate("location.search") == "?range=7d", "where the visitor wanted to go"
        await tab.click("dd.bad a")
        await tab.click("tbody a")
        failed = await tab.evaluate("location.pathname")
        assert "the worker broke off" in await tab.evaluate("document.querySelector('.problem').innerText")
        await tab.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        for path in ("/dashboard", "/dashboard/requests", failed):
            await tab.go(f"{site.origin}{path}")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
            assert await tab.evaluate("document.querySelectorAll('h1').length") == 1
            hidden = "[...document.querySelectorAll('.scroll')].filter(each => each.tabIndex != 0).length"
            assert await tab.evaluate(hidden) == 0
            sizes = "[...document.querySelectorAll('.tick')].map(each => each.getBoundingClientRect().height)"
            assert min(await tab.evaluate(sizes), default=11) >= 11
        assert tab.complaints == []


async def test_the_browsers_zone_is_offered_and_kept_and_every_page_is_accessible(
    chromium: str, site: Site, tmp_path: Path
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        await tab.go(f"{site.origin}/dashboard/login")
        await assert_accessible(tab)
        await tab.log_in(site.origin, site.acme.key, "/dashboard/requests?range=7d")
        await tab.click("#own-zone button")
        assert await tab.evaluate("location.search") == "?range=7d&notice=zone"
        assert "Times in Asia/Tokyo" in await tab.evaluate("document.querySelector('footer').innerText")
        assert await tab.evaluate("document.getElementById('own-zone').hidden")
        one = await tab.evaluate("document.querySelector('tbody a').pathname")
        for width in (1280, 390):
            await tab.resize(width)
            for path in ("/dashboard", "/dashboard/requests", one, "/dashboard/zone", "/dashboard/nowhere"):
                await tab.go(f"{site.origin}{path}")
                await assert_accessible(tab)
                assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        # The page that is not there is told by the browser itself.
        assert all("404" in complaint for complaint in tab.complaints), tab.complaints
