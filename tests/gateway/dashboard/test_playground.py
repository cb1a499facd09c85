"""The playground over HTTP: the platform's own way, under the visitor's own key."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from gateway.dashboard.playground_call import CLIENT_REQUEST_ID
from tests.gateway.dashboard.playground_scene import PlaygroundScene, read_stream, running_playground
from tests.support.consoles import Visit, visit
from tests.support.gateways import ADMIN_KEY, durable_events, eventually
from tests.support.members import hang_up
from tests.support.scripted_members import Json, Turn
from tests.support.valkey import ValkeyProcess

MARKUP = "<img src=x onerror=alert(1)> \u2028 \u202e 😀 </script>"
PATH, STREAM = "/dashboard/playground", "/dashboard/playground/answer"


@pytest.fixture
async def scene(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[PlaygroundScene]:
    async with running_playground(tmp_path, valkey, lambda body: Turn([f"You said {said(body)}"])) as running:
        yield running


async def test_a_worker_of_our_own_is_asked_the_same_way(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with (
        running_playground(tmp_path, valkey, lambda body: Turn([f"You said {said(body)}"]), engine="tiergate") as scene,
        visit(scene.gateway, scene.key) as visitor,
    ):
        events = await read_stream(visitor, {"model_1": "small", "prompt": "Hi!"})
        assert scene.text_of(events) == "You said Hi!" and "5 out" in dict(events)["end"]
        page = (await visitor.send(PATH, model_1="small", prompt="Hi!")).text
        assert ">You said Hi!<" in page


@asynccontextmanager
async def visiting(scene: PlaygroundScene) -> AsyncIterator[Visit]:
    async with visit(scene.gateway, scene.key) as visitor:
        yield visitor


def said(body: Json) -> str:
    return str(body["messages"][-1]["content"])


async def test_an_answer_is_streamed_routed_metered_and_billed_as_any_request(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        fields = {"model_1": "small", "prompt": "Hi!", "system": "Be kind.", "temperature": "0.5", "max_tokens": "9"}
        events = await read_stream(visitor, fields)
    names = [name for name, _ in events]
    assert names[0] == "about" and names[-1] == "end" and "problem" not in names
    assert scene.text_of(events) == "You said Hi!"
    [body] = scene.member.bodies
    assert [each["role"] for each in body["messages"]] == ["system", "user"]
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)
    await eventually(lambda: durable_events(scene.gateway))
    [event] = durable_events(scene.gateway)
    assert (event.status, event.client_request_id, event.key_id) == ("ok", CLIENT_REQUEST_ID, scene.key_id)
    assert event.cost_nanousd > 0
    about, end = dict(events)["about"], dict(events)["end"]
    assert f"/dashboard/requests/{event.request_id}" in end and "$0.0000" in end and "5 out" in end
    assert "requested: small" in about and "Authorization: Bearer $TIERGATE_API_KEY" in about
    assert scene.key not in about


async def test_without_a_script_whole_answers_stand_beside_each_other_on_the_next_page(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        reply = await visitor.send(PATH, model_1="small", model_2="m", prompt="Hi!")
        assert reply.status_code == 200 and reply.text.count(">You said Hi!<") == 2 and "Cost" in reply.text
        again = await visitor.submit(reply.text, PATH, {"prompt": "And now?"})
        assert again.text.count(">You said And now?<") == 2
    last = [(each["role"], each["content"]) for each in scene.member.bodies[-1]["messages"]]
    assert last == [("user", "Hi!"), ("assistant", "You said Hi!"), ("user", "And now?")]
    await eventually(lambda: len(durable_events(scene.gateway)) == 4)


async def test_what_models_and_visitors_write_is_never_markup(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with (
        running_playground(tmp_path, valkey, lambda _: Turn([MARKUP])) as scene,
        visit(scene.gateway, scene.key) as visitor,
    ):
        page = (await visitor.send(PATH, model_1="small", prompt=MARKUP, system=MARKUP)).text
        assert "<img" not in page and page.count("&lt;img") >= 4
        events = await read_stream(visitor, {"model_1": "small", "prompt": MARKUP})
        assert scene.text_of(events) == MARKUP
        assert all("<img" not in html for name, html in events if name != "message")
        wrong = await visitor.send(PATH, model_1=MARKUP, prompt="Hi!")
        assert wrong.status_code == 200 and "model_not_found" in wrong.text and "<img" not in wrong.text


async def test_a_refusal_is_told_with_its_code_and_costs_nothing(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        for fields, code in (
            ({"model_1": "nobody", "prompt": "Hi!"}, "model_not_found"),
            ({"model_1": "small", "prompt": "Hi!", "temperature": "7"}, "temperature"),
        ):
            events = dict(await read_stream(visitor, fields))
            assert code in events.get("problem", "") and "costs nothing" in events["end"], events
    assert scene.member.bodies == [] and durable_events(scene.gateway) == []


async def test_a_member_that_dies_in_mid_stream_leaves_what_came_and_an_error(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": "Once upon"}, "finish_reason": None}
        await response.write(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\ndata: {")
        return await hang_up(request)

    async with (
        running_playground(tmp_path, valkey, lambda _: Turn(["never"])) as scene,
        visit(scene.gateway, scene.key) as visitor,
    ):
        scene.member.interrupt = break_off
        events = await read_stream(visitor, {"model_1": "small", "prompt": "Hi!"})
        errors = [json.loads(text)["error"]["code"] for name, text in events if name == "message" and '"error"' in text]
        assert scene.text_of(events) == "Once upon" and errors == ["upstream_failed"]
        assert "$0.00" in dict(events)["end"] or "$0<" in dict(events)["end"]
        page = (await visitor.send(PATH, model_1="small", prompt="Hi!")).text
        assert 'class="problem"' in page and "Hi!</textarea>" in page, "what was typed is kept"


async def test_a_visitor_who_leaves_ends_the_answer(tmp_path: Path, valkey: ValkeyProcess) -> None:
    left = asyncio.Event()

    async def go_on(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": "more "}, "finish_reason": None}
        try:
            while True:
                await response.write(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n")
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            left.set()
            raise

    async with (
        running_playground(tmp_path, valkey, lambda _: Turn(["never"])) as scene,
        visit(scene.gateway, scene.key) as visitor,
    ):
        scene.member.interrupt = go_on
        fields = {"model_1": "small", "prompt": "Hi!", "column": "0", "token": await scene.token_of(visitor)}
        async with visitor.http.stream("POST", STREAM, data=fields) as reply:
            async for line in reply.aiter_lines():
                if "more" in line:
                    break
        async with asyncio.timeout(30):
            await left.wait()
        await eventually(lambda: [event.status for event in durable_events(scene.gateway)] == ["cancelled"])


async def test_the_keys_own_limits_hold(scene: PlaygroundScene) -> None:
    limits = {"requests_per_minute": 1}
    reply = await scene.gateway.admin.patch(f"/keys/{scene.key_id}", json={"limits": limits})
    assert reply.status_code == 200, reply.text
    async with visiting(scene) as visitor:
        fields = {"model_1": "small", "prompt": "Hi!"}
        assert "problem" not in dict(await read_stream(visitor, fields))
        assert "requests_per_minute" in dict(await read_stream(visitor, fields))["problem"]


async def test_only_models_that_the_key_may_use_are_offered_and_asked(scene: PlaygroundScene) -> None:
    await scene.gateway.admin.patch(f"/keys/{scene.key_id}", json={"allowed_models": ["m"]})
    async with visiting(scene) as visitor:
        page = await visitor.page(PATH)
        assert '<option value="m"' in page and '<option value="auto"' not in page
        problem = dict(await read_stream(visitor, {"model_1": "auto", "prompt": "Hi!"}))["problem"]
        assert "model_not_allowed" in problem


async def test_a_key_without_the_scope_is_told(scene: PlaygroundScene) -> None:
    key = await scene.gateway.make_key(scopes=("usage",))
    async with visit(scene.gateway, key) as visitor:
        assert "lacks the scope inference" in await visitor.page(PATH, status=403)
        token = await scene.token_of(visitor, "/dashboard/requests")
        for path in (PATH, STREAM):
            fields = {"model_1": "small", "prompt": "Hi!", "column": "0", "token": token}
            assert (await visitor.http.post(path, data=fields)).status_code == 403
    assert scene.member.bodies == []


async def test_nothing_is_sent_without_the_pages_own_token(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        token = await scene.token_of(visitor)
        for path in (PATH, STREAM):
            fields = {"model_1": "small", "prompt": "Hi!", "column": "0"}
            own = fields | {"token": token}
            replies: list[httpx.Response] = [
                await visitor.http.post(path, data=fields),
                await visitor.http.post(path, data=fields | {"token": "made up"}),
                await visitor.http.post(path, data=own, headers={"Sec-Fetch-Site": "cross-site"}),
                await visitor.http.post(path, data=own, headers={"Origin": "http://evil.example"}),
            ]
            assert [reply.status_code for reply in replies] == [403] * 4
        assert (await visitor.http.get(STREAM)).status_code == 303
    assert scene.member.bodies == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model_1": "small", "prompt": " "}, "Write what to ask"),
        ({"model_1": "", "prompt": "Hi!"}, "Choose a model"),
        ({"model_1": "small", "prompt": "Hi!", "temperature": "warm"}, "Write a number"),
        ({"model_1": "small", "prompt": "Hi!", "temperature": "nan"}, "Write a number"),
        ({"model_1": "small", "prompt": "Hi!", "seed": "1.5"}, "Write a whole number"),
        ({"model_1": "small", "prompt": "Hi!", "history": "[{]"}, "start over"),
        ({"model_1": "small", "prompt": "Hi!", "history": '[{"user":1}]'}, "start over"),
    ],
)
async def test_what_makes_no_sense_is_told_at_its_field_and_stays(
    scene: PlaygroundScene, fields: dict[str, str], told: str
) -> None:
    async with visiting(scene) as visitor:
        page = await visitor.send(PATH, fields)
        assert page.status_code == 400 and told in page.text
        assert fields["prompt"].strip() in page.text
        form = {**fields, "column": "0", "token": await scene.token_of(visitor)}
        stream = await visitor.http.post(STREAM, data=form)
        assert stream.status_code == 400 and told in stream.text
        assert stream.headers["content-type"].startswith("text/plain")
    assert scene.member.bodies == []


async def test_a_column_without_a_model_has_no_answer(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        for column in ("1", "x", "", "7"):
            form = {"model_1": "small", "prompt": "Hi!", "column": column, "token": await scene.token_of(visitor)}
            assert (await visitor.http.post(STREAM, data=form)).status_code == 400


async def test_a_prompt_of_a_million_letters_is_refused(scene: PlaygroundScene) -> None:
    async with visiting(scene) as visitor:
        for path in (PATH, STREAM):
            form = {
                "model_1": "small",
                "prompt": "a" * 1_000_000,
                "column": "0",
                "token": await scene.token_of(visitor),
            }
            reply = await visitor.http.post(path, data=form)
            assert reply.status_code == 413 and "larger than" in reply.text


async def test_an_adapter_is_another_tenants_secret(scene: PlaygroundScene) -> None:
    other = await scene.gateway.post("/tenants", {"name": "other", "tier": "free"})
    secret = {"tenant_id": other["id"], "name": "their-voice", "variants": {"m": "v"}}
    await scene.gateway.post("/adapters", secret)
    async with visiting(scene) as visitor:
        assert '<option value="their-voice"' not in await visitor.page(f"{PATH}?model=their-voice")
        assert (
            "model_not_found"
            in dict(await read_stream(visitor, {"model_1": "their-voice", "prompt": "Hi!"}))["problem"]
        )


async def test_where_there_is_no_model_the_page_says_so(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_playground(tmp_path, valkey, lambda _: Turn(["x"])) as scene:
        await scene.gateway.admin.patch(f"/keys/{scene.key_id}", json={"allowed_models": ["nothing-there"]})
        async with visit(scene.gateway, scene.key) as visitor:
            assert "There is no chat model" in await visitor.page(PATH)


async def test_the_operators_first_key_is_told_what_it_lacks(scene: PlaygroundScene) -> None:
    async with visit(scene.gateway, ADMIN_KEY) as visitor:
        page = await visitor.page(PATH, status=403)
        assert "lacks the scope inference" in unescape(page) and page.count("<h1>") == 1
