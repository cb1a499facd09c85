"""axe-core over a page of the console, in the browser."""

import asyncio
import fcntl
import json
import os
import re
from pathlib import Path

from tests.support.browser import Tab
from tests.support.clients import npm_install

VERSION = "4.14.1"
_FOLDER = Path(__file__).parents[2] / ".cache" / f"axe-core-{VERSION}"


def axe_source() -> str:
    """Fetched once for this checkout. Without npm or its registry the test is skipped, and in CI it fails."""
    script = _FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            (_FOLDER / "package.json").write_text(json.dumps({"private": True, "dependencies": {"axe-core": VERSION}}))
            npm_install(_FOLDER)
    return script.read_text()


async def assert_accessible(tab: Tab) -> None:
    """axe's default rules find nothing on the page that `tab` shows, light or dark.

    TIERGATE_TEST_PICTURES is a folder for what it looked like."""
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
    """On a desk and on a phone: axe finds nothing, nothing sticks out, and there is one heading."""
    path = await tab.evaluate("location.pathname")
    for width in (1280, 390):
        await tab.resize(width)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        assert await tab.evaluate("document.querySelectorAll('h1').length") == 1, path
        await assert_accessible(tab)
