"""The dashboard in a real browser: it renders, its style applies, and nothing of it is refused by its own policy."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.browser import open_tab
from tests.support.dashboards import Site

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("chromium is not installed; .ci/run installs it")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


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
        assert await tab.evaluate("[...document.querySelectorAll('svg.chart')].length") == 2
        heights = "[...document.querySelectorAll('.bar')].map(bar => bar.getBoundingClientRect().height)"
        assert min(await tab.evaluate(heights)) > 1
        assert await tab.evaluate("document.cookie") == "", "scripts cannot read the cookie"
        await tab.click("nav a[href*='30d']")
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
