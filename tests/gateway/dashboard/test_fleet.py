"""The fleet page: what the replicas say, live, and draining them."""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from gateway.dashboard import fleet_stream
from gateway.dashboard.fleet_view import view_fleet
from gateway.dashboard.rendering import render_part
from router.fleet import Fleet, usable_members
from tests.gateway.upstream.test_registry import register, registration
from tests.support.accessibility import assert_accessible
from tests.support.browser import Tab, open_tab
from tests.support.consoles import Visit, visit
from tests.support.fleets import load, member
from tests.support.gateways import ADMIN_KEY, Gateway, eventually, make_settings, running_gateway
from tests.support.members import pools, serving_member, stream_of
from tests.support.valkey import ValkeyProcess

MARKUP = "<b>w</b> \u202eab 😀"


@asynccontextmanager
async def console(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway over one foreign server that is listed, and its address."""
    async with serving_member(stream_of()) as url:
        listed = pools({"url": url, "engine": "openai", "model": "m"})
        async with running_gateway(make_settings(tmp_path, valkey.url, pools=listed)) as gateway:
            await eventually(lambda: usable(gateway) == {url})
            yield gateway, url


def usable(gateway: Gateway) -> set[str]:
    return {member.worker_id for member in usable_members(gateway.services.registry.fleet.pools["small"])}


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


async def test_the_page_shows_what_replicas_say_of_themselves(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, url), visit(gateway, ADMIN_KEY) as visitor:
        busy = {"num_running": 7, "num_waiting": 4, "num_free_blocks": 2, "resident_adapters": ("tone",)}
        await register(gateway, registration("busy", url="http://127.0.0.1:9", adapters=("tone", "voice"), **busy))
        await register(gateway, registration(MARKUP, url="http://127.0.0.1:10", is_draining=True))
        gateway.services.registry.note_failure("busy", is_fatal=True)
        page = await visitor.page("/dashboard/fleet")
        text = text_of(page)
        for told in ("7 of 8", "75 %", "tone of 2", "failed, left alone", "shutting down", "another engine", url):
            assert told in text, told
        assert MARKUP in text and "<b>w</b>" not in page


async def test_a_replica_is_drained_and_taken_back_on_the_page(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, url), visit(gateway, ADMIN_KEY) as visitor:
        path = f"/dashboard/fleet/drain?worker={quote(url, safe='')}"
        assert "the pool will be unavailable" in text_of(await visitor.page(path))
        assert usable(gateway) == {url}, "nothing is done by looking"
        done = await visitor.send(path)
        assert (done.status_code, usable(gateway)) == (303, set())
        page = text_of(await visitor.page(done.headers["location"]))
        assert "It gets no new requests from now on." in page and "drained" in page and "unavailable" in page
        done = await visitor.send(path.replace("/drain", "/undrain"))
        assert (done.status_code, usable(gateway)) == (303, {url})
        rows = (await gateway.admin.get("/audit", params={"action": "worker.drain"})).json()["data"]
        assert [row["object_id"] for row in rows] == [url]


async def test_a_replica_that_is_gone_is_told(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        for path in (
            "/dashboard/fleet/drain?worker=gone",
            "/dashboard/fleet/drain",
            "/dashboard/fleet/undrain?worker=",
        ):
            assert "not there any more" in await visitor.page(path, status=404)


async def test_nothing_is_drained_without_the_pages_own_form(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, url), visit(gateway, ADMIN_KEY) as visitor:
        path = f"/dashboard/fleet/drain?worker={quote(url, safe='')}"
        page = await visitor.page(path)
        wrong = await visitor.submit(page, path, {"token": "made up"})
        own: Any = re.search(r'name="token" value="([^"]+)"', page)
        foreign = await visitor.http.post(path, data={"token": own[1]}, headers={"Sec-Fetch-Site": "cross-site"})
        assert (wrong.status_code, foreign.status_code, usable(gateway)) == (403, 403, {url})


@pytest.mark.parametrize("path", ["", "/events", "/drain?worker=w", "/undrain?worker=w"])
async def test_only_operators_see_the_fleet(tmp_path: Path, own_valkey: ValkeyProcess, path: str) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        await register(gateway, registration("w"))
        key = await gateway.make_key(scopes=("inference", "usage", "tenant-admin"))
        async with visit(gateway, key) as visitor:
            page = await visitor.page(f"/dashboard/fleet{path}", status=403)
            assert "http://127.0.0.1:9" not in page and 'href="/dashboard/fleet"' not in page


async def read_events(visitor: Visit) -> AsyncIterator[tuple[str, str]]:
    async with visitor.http.stream("GET", "/dashboard/fleet/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream"), reply.status_code
        name, lines = "", []
        async for line in reply.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
            elif not line and name:
                yield name, "\n".join(lines)
                name, lines = "", []


async def test_changes_are_told_as_they_come(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, url), visit(gateway, ADMIN_KEY) as visitor:
        events = read_events(visitor)
        name, html = await anext(events)
        assert name == "fleet" and "open" in text_of(html) and (await anext(events))[0] == "seen"
        await gateway.admin.patch(f"/workers/{quote(url, safe='')}", json={"is_drained": True})
        async for name, html in events:
            if name == "fleet" and "unavailable" in text_of(html):
                break
        else:
            pytest.fail("the stream ended before")
        await events.aclose()  # type: ignore[attr-defined]


async def test_a_stream_ends_soon_and_who_is_logged_out_gets_no_other(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_stream, "LIFETIME_S", 2.0)
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        names = {name async for name, _ in read_events(visitor)}
        assert names == {"fleet", "seen"}
        visitor.http.cookies.clear()
        assert (await visitor.http.get("/dashboard/fleet/events")).status_code == 303


async def test_the_number_of_streams_is_bounded_and_those_that_left_do_not_count(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_stream, "MAX_VIEWERS", 2)
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        streams = [read_events(visitor) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        reply = await visitor.http.get("/dashboard/fleet/events")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 30
        while (status := await first_status(visitor)) != 200:
            assert time.monotonic() < deadline, status


async def first_status(visitor: Visit) -> int:
    async with visitor.http.stream("GET", "/dashboard/fleet/events") as reply:
        return reply.status_code


async def test_a_gateway_that_is_told_to_stop_ends_its_streams(
    tmp_path: Path, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_stream, "LIFETIME_S", 3600.0)
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        events = read_events(visitor)
        assert (await anext(events))[0] == "fleet"
        gateway.server.should_exit = True
        async for _ in events:
            pass


async def test_a_large_fleet_is_a_light_page_that_tells_of_the_rest(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        registry = gateway.services.registry
        pool = registry.fleet.pools["small"]
        many = tuple(member(f"worker-{i}-of-a-large-fleet", load(adapters=("tone",))) for i in range(3000))
        registry.fleet = Fleet(pools={name: replace(pool, name=name, members=many) for name in ("small", "large")})
        html = render_part("fleet_pools.html", pools=view_fleet(gateway.services))
        registry.redraw()
        assert "2950 more" in html
        assert len(html) + len((await visitor.page("/dashboard/fleet")).encode()) < 170_000


async def test_viewers_share_one_rendering(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, _):
        live = fleet_stream.LiveFleet(gateway.services)
        assert live.html() is live.html()


async def shown(tab: Tab, expression: str) -> None:
    """Wait until it is true in the page."""
    deadline = time.monotonic() + 60
    while not await tab.evaluate(expression):
        assert time.monotonic() < deadline, (expression, await tab.evaluate("document.body.innerText"))


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_page_follows_the_fleet_in_the_browser_and_keeps_the_focus(
    chromium: str, tmp_path: Path, own_valkey: ValkeyProcess, width: int
) -> None:
    async with (
        console(tmp_path, own_valkey) as (gateway, url),
        open_tab(chromium, tmp_path / "profile") as tab,
    ):
        await tab.resize(width)
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/fleet")
        await shown(tab, "document.querySelector('.as-of').innerText.startsWith('Live')")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        await assert_accessible(tab)
        # By keyboard alone: to the link, to its page, and the page's button.
        await tab.evaluate("document.querySelector('#fleet .scroll').focus()")
        await tab.press("Tab")
        assert "Drain" in await tab.evaluate("document.activeElement.innerText")
        await gateway.admin.patch(f"/workers/{quote(url, safe='')}", json={"is_drained": True})
        await shown(tab, "document.querySelector('#fleet').innerText.includes('unavailable')")
        assert await tab.evaluate("document.activeElement.innerText") == "Take back", "in the place of the one before"
        await tab.press("Enter", leads_on=True)
        await assert_accessible(tab)
        await tab.click("main button")
        assert await tab.evaluate("location.pathname") == "/dashboard/fleet"
        await assert_accessible(tab)
        assert usable(gateway) == {url} and tab.complaints == []


async def test_without_scripts_the_page_shows_the_state_as_of_now(
    chromium: str, tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    async with console(tmp_path, own_valkey) as (gateway, url), open_tab(chromium, tmp_path / "profile") as tab:
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.log_in(gateway.origin, ADMIN_KEY, "/dashboard/fleet")
        assert "As of" in await tab.evaluate("document.querySelector('.as-of').innerText")
        assert url in await tab.evaluate("document.querySelector('#fleet').innerText")


async def test_the_first_view_is_light(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with console(tmp_path, own_valkey) as (gateway, _), visit(gateway, ADMIN_KEY) as visitor:
        page = await visitor.page("/dashboard/fleet")
        files = re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page)
        replies = [await visitor.http.get(unescape(path)) for path in files]
        assert all("immutable" in reply.headers["cache-control"] for reply in replies)
        assert len(page) + sum(len(reply.content) for reply in replies) < 200_000
        assert not httpx.URL(files[0]).host
