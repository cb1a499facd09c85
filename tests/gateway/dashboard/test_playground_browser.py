"""The playground in a real browser: streams beside each other, by keyboard, at two widths; and without scripts."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.gateway.dashboard.playground_scene import PATH, running_playground
from tests.support.accessibility import assert_accessible
from tests.support.browser import Tab, open_tab
from tests.support.gateways import durable_events, eventually
from tests.support.members import hang_up
from tests.support.scripted_members import Json, Turn
from tests.support.valkey import ValkeyProcess

MARKUP = "<img src=x onerror=\"document.title='owned'\"> </script> 😀"


def script(body: Json) -> Turn:
    said = str(body["messages"][-1]["content"])
    return Turn(["You ", "said ", MARKUP if said == "markup" else said])


async def shown(tab: Tab, expression: str) -> None:
    """Wait until it is true in the page."""
    deadline = time.monotonic() + 60
    while not await tab.evaluate(expression):
        assert time.monotonic() < deadline, (expression, await tab.evaluate("document.body.innerText"))


async def answers(tab: Tab) -> list[str]:
    found = await tab.evaluate("JSON.stringify([...document.querySelectorAll('.answer .text')].map(x => x.innerText))")
    return list(json.loads(found))


async def choose(tab: Tab, field: str, value: str) -> None:
    await tab.evaluate(f"document.querySelector('[name={field}]').value = {json.dumps(value)}")


async def settled(tab: Tab) -> None:
    await shown(tab, "document.getElementById('told').innerText.startsWith('All answers')")


@pytest.mark.parametrize("width", [1280, 390])
async def test_two_models_are_asked_by_keyboard_and_answer_beside_each_other(
    chromium: str, tmp_path: Path, valkey: ValkeyProcess, width: int
) -> None:
    async with running_playground(tmp_path, valkey, script) as scene, open_tab(chromium, tmp_path / "profile") as tab:
        await tab.resize(width)
        await tab.log_in(scene.gateway.origin, scene.key, PATH)
        await assert_accessible(tab)
        await choose(tab, "model_1", "small")
        await choose(tab, "model_2", "m")
        await tab.fill("[name=prompt]", "Hello")
        for _ in range(2):
            await tab.press("Tab")
        await tab.press("Enter")
        await settled(tab)
        assert await answers(tab) == ["You said Hello"] * 2
        assert await tab.evaluate("document.activeElement.name") == "prompt", "ready for the next one"
        await tab.fill("[name=prompt]", "markup")
        await tab.evaluate("document.getElementById('told').textContent = ''")
        await tab.evaluate("document.querySelector('#play button').click()")
        await settled(tab)
        assert (await answers(tab))[2:] == [f"You said {MARKUP}"] * 2
        assert await tab.evaluate("document.querySelectorAll('.answer img').length") == 0
        assert "owned" not in await tab.evaluate("document.title")
        assert [each["role"] for each in scene.member.bodies[-1]["messages"]] == ["user", "assistant", "user"]
        await tab.evaluate("document.querySelectorAll('.answer details').forEach(each => { each.open = true })")
        text = await tab.evaluate("document.querySelector('.answer').innerText")
        for told in ("$0.0000", "5 out", "requested: small", "client.chat.completions.create"):
            assert told in text, (told, text)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        await assert_accessible(tab)
        assert tab.complaints == []


async def test_a_refusal_stands_at_its_answer_and_what_was_typed_stays(
    chromium: str, tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with running_playground(tmp_path, valkey, script) as scene, open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(scene.gateway.origin, scene.key, PATH)
        await tab.evaluate("document.querySelector('#play details').open = true")
        await tab.fill("[name=temperature]", "warm")
        await tab.fill("[name=prompt]", "Hello")
        await tab.evaluate("document.querySelector('#play button').click()")
        await settled(tab)
        assert "Write a number" in await tab.evaluate("document.querySelector('.answer .problem').innerText")
        assert await tab.evaluate("document.querySelector('[name=prompt]').value") == "Hello"


async def say_without_end(request: web.Request) -> web.StreamResponse:
    response = await begin(request)
    while True:
        await response.write(chunk_of("more "))
        await asyncio.sleep(0.01)


async def break_off(request: web.Request) -> web.StreamResponse:
    response = await begin(request)
    await response.write(chunk_of("Once upon"))
    return await hang_up(request)


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def chunk_of(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def test_an_answer_is_stopped_and_what_came_stays(chromium: str, tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_playground(tmp_path, valkey, script) as scene, open_tab(chromium, tmp_path / "profile") as tab:
        scene.member.interrupt = say_without_end
        await tab.log_in(scene.gateway.origin, scene.key, PATH)
        await tab.fill("[name=prompt]", "Hello")
        await tab.evaluate("document.querySelector('#play button').click()")
        await shown(tab, "document.querySelector('.answer .text')?.innerText.includes('more')")
        await tab.evaluate("document.getElementById('stop').click()")
        await shown(tab, "document.getElementById('told').innerText === 'Stopped.'")
        assert "more" in (await answers(tab))[0]
        await eventually(lambda: [event.status for event in durable_events(scene.gateway)] == ["cancelled"])
        assert tab.complaints == []


async def test_an_answer_that_breaks_off_and_a_visit_that_has_ended_are_told(
    chromium: str, tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with running_playground(tmp_path, valkey, script) as scene, open_tab(chromium, tmp_path / "profile") as tab:
        scene.member.interrupt = break_off
        await tab.log_in(scene.gateway.origin, scene.key, PATH)
        await tab.fill("[name=prompt]", "Hello")
        await tab.evaluate("document.querySelector('#play button').click()")
        await settled(tab)
        assert await answers(tab) == ["Once upon"]
        assert "upstream_failed" in await tab.evaluate("document.querySelector('.answer .problem').innerText")
        assert await tab.evaluate("document.querySelector('[name=prompt]').value") == "Hello"
        await tab.call("Network.clearBrowserCookies")
        await tab.evaluate("document.getElementById('told').textContent = ''")
        await tab.evaluate("document.querySelector('#play button').click()")
        await settled(tab)
        problems = "[...document.querySelectorAll('.answer .problem')].map(each => each.innerText).join()"
        assert "Your visit has ended" in await tab.evaluate(problems)


async def test_without_scripts_the_form_answers_on_the_next_page(
    chromium: str, tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with running_playground(tmp_path, valkey, script) as scene, open_tab(chromium, tmp_path / "profile") as tab:
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.log_in(scene.gateway.origin, scene.key, PATH)
        await tab.fill("[name=prompt]", "Hello")
        await tab.click("#play button")
        assert await answers(tab) == ["You said Hello"]
        assert "Cost" in await tab.evaluate("document.querySelector('.answer .end').innerText")
