"""A headless Chromium, driven through its debugging protocol."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

DEADLINE_S = 60
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "about:blank"),
]

_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "p": (80, "p")}


class Tab:
    def __init__(self, socket: "aiohttp.ClientWebSocketResponse") -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._loader = ""
        self._loaded: list[str] = []
        """Loader ids of the documents that have loaded, in order of their load events."""
        self.complaints: list[str] = []
        """Messages in the browser's console and log, such as errors and refused content."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        wanted = next(self._ids)
        await self._socket.send_json({"id": wanted, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == wanted:
                assert "error" not in message, message
                return dict(message["result"])

    async def evaluate(self, expression: str) -> Any:
        """The value of the expression; a promise is awaited."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def go(self, url: str) -> None:
        wanted = (await self.call("Page.navigate", url=url))["loaderId"]
        while wanted not in self._loaded:
            await self._next()
        self._loader = wanted

    async def click(self, selector: str) -> None:
        """Click an element that leads to another page, and wait for that page."""
        before = len(self._loaded)
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        await self._arrive(before)

    async def press(self, key: str, *, leads_on: bool = False) -> None:
        """Press a key by its name, such as Tab or Enter. leads_on: it leads to another page; wait for that page."""
        before, (code, text) = len(self._loaded), _KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        if leads_on:
            await self._arrive(before)

    async def fill(self, selector: str, text: str) -> None:
        """Replace a field's content by the text, as typing does."""
        await self.evaluate(f"(at => {{ at.focus(); at.select(); }})(document.querySelector({json.dumps(selector)}))")
        await self.call("Input.insertText", text=text)

    async def log_in(self, origin: str, key: str, path: str = "/dashboard") -> None:
        await self.go(f"{origin}{path}")
        await self.type(key)
        await self.click("button")

    async def resize(self, width: int) -> None:
        """Set the width in pixels; 390 is that of a phone."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def until(self, expression: str) -> None:
        """Poll the page until the expression is true."""
        async with asyncio.timeout(DEADLINE_S):
            while not await self.evaluate(expression):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def picture(self) -> bytes:
        """A screenshot of the whole page, as PNG."""
        made = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(made["data"])

    async def _arrive(self, before: int) -> None:
        while not (others := [loader for loader in self._loaded[before:] if loader != self._loader]):
            await self._next()
        self._loader = others[-1]

    async def type(self, text: str) -> None:
        """Type into the focused field. `autofocus` takes effect only at the first frame after the load event."""
        await self.until("document.activeElement !== document.body")
        await self.call("Input.insertText", text=text)

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            message: dict[str, Any] = await self._socket.receive_json()
        match message.get("method"):
            case "Log.entryAdded":
                self.complaints.append(str(message["params"]["entry"]["text"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]["text"]))
            case "Runtime.consoleAPICalled" if message["params"]["type"] == "error":
                self.complaints.append(str(message["params"]["args"]))
            case "Page.lifecycleEvent" if message["params"]["name"] == "load":
                self._loaded.append(message["params"]["loaderId"])
        return message


@asynccontextmanager
async def open_tab(chromium: str, profile: Path) -> AsyncIterator[Tab]:
    command = [chromium, *_FLAGS, f"--user-data-dir={profile}"]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            while not (line := (await process.stderr.readline()).decode()).startswith("DevTools listening on "):
                assert line, "the browser ended"
        origin = line.split()[-1].replace("ws://", "http://").split("/devtools/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{origin}/json/list") as reply:
                [page] = [each for each in await reply.json() if each["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.call("Page.enable")
                await tab.call("Page.setLifecycleEventsEnabled", enabled=True)
                await tab.call("Log.enable")
                await tab.call("Runtime.enable")
                yield tab
    finally:
        process.kill()
        await process.communicate()
