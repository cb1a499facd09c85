"""Runs axe-core on pages of the console, in the browser."""

import asyncio
import json
import os
import re
from pathlib import Path

from tests.support.browser import Tab
from tests.support.clients import kept_package

VERSION = "4.14.1"


def axe_source() -> str:
    """Without npm or its registry the test is skipped; in CI it fails."""
    return (kept_package("axe-core", VERSION) / "axe-core" / "axe.min.js").read_text()


async def assert_accessible(tab: Tab) -> None:
    """Assert that axe's default rules find nothing on the page in `tab`, light or dark.

    If TIERGATE_TEST_PICTURES names a folder, screenshots are written there.
    """
    await tab.evaluate(f"{axe_source()};0")
    path, width = await tab.evaluate("[location.pathname, innerWidth]")
    for scheme in ("light", "dark"):
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        if folder := os.environ.get("TIERGATE_TEST_PICTURES"):
            name = re.sub(r"[^a-z]+", "-", re.sub(r"[0-9a-f-]{36}", "one", path).strip("/"))
            picture = Path(folder) / f"{name}-{width}-{scheme}.png"
            await asyncio.to_thread(picture.write_bytes, await tab.picture())
        found = await tab.evaluate("axe.run().then(found => JSON.stringify(found.violations))")
        wrong = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in json.loads(found)]
        assert wrong == [], f"{path}, {scheme}: {wrong}"


async def assert_well_shown(tab: Tab) -> None:
    """Assert, at a desktop's and a phone's width, that axe finds nothing, nothing overflows, and there is one h1."""
    path = await tab.evaluate("location.pathname")
    for width in (1280, 390):
        await tab.resize(width)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        assert await tab.evaluate("document.querySelectorAll('h1').length") == 1, path
        await assert_accessible(tab)
