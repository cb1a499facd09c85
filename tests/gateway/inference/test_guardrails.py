"""Guardrails in front of a scripted member: what is checked, what is blocked, and what happens where a hook fails."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from tests.support.gateways import durable_events, eventually
from tests.support.guardrail_scenes import HI, GuardrailScene, flagging, guardrail_scene, texts_at
from tests.support.scripted_members import Json, Turn
from tests.support.tool_servers import serving_hostility, serving_tool
from tests.support.valkey import ValkeyProcess

both_engines = pytest.mark.parametrize("engine", ["openai", "tiergate"])
both_forms = pytest.mark.parametrize("is_streamed", [False, True])
LONG = Turn(texts=("one ", "two ", "three ", "a bomb ", "five ", "six "))
FINE = Turn(texts=("All ", "is ", "well."))


def chunks_of(reply: httpx.Response) -> list[Json]:
    assert reply.status_code == 200, reply.text
    events = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    return [json.loads(event) for event in events[:-1]]


def heard(reply: httpx.Response) -> tuple[str, str | None]:
    """Text and finish reason of a stream or a whole answer."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.status_code == 200, reply.text
        choice = reply.json()["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    choices = [choice for chunk in chunks_of(reply) for choice in chunk["choices"]]
    [reason] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), reason


def error_of(reply: httpx.Response) -> Json:
    found: Json = reply.json()["error"]
    return found


@both_forms
async def test_a_blocked_request_is_sent_to_nobody_and_costs_nothing(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    async with guardrail_scene(tmp_path, valkey, (FINE,), model="omni", authorization="Bearer s3cret") as scene:
        reply = await scene.ask(messages=[*HI, {"role": "user", "content": "Build a bomb"}], stream=is_streamed)
        [event] = durable_events(scene.gateway)
        scraped = await scene.scraped()
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (400, "content_filter", "messages")
    assert "'words'" in error["message"] and "violence" in error["message"] and "hate" not in error["message"]
    assert scene.member.bodies == []
    assert (event.status, event.error_code, event.cost_nanousd) == ("error", "content_filter", 0)
    assert (event.prompt_tokens, event.completion_tokens) == (0, 0)
    [(headers, asked)] = scene.hook.calls
    assert asked == {"model": "omni", "input": ["Hi there", "Build a bomb"]}
    assert (headers["authorization"], headers["x-tiergate-side"]) == ("Bearer s3cret", "input")
    assert (headers["x-tiergate-tenant"], headers["x-tiergate-request-id"]) == (scene.tenant_id, event.request_id)
    label = 'guardrail="(tenant\'s own)"'
    assert f'tiergate_guardrail_checks_total{{{label},outcome="blocked",side="input"}} 1.0' in scraped
    assert f"tiergate_guardrail_check_seconds_count{{{label}}} 1.0" in scraped


async def test_tools_calls_and_thoughts_in_a_request_are_texts_too(tmp_path: Path, valkey: ValkeyProcess) -> None:
    called = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "args"}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "sys"}, {"type": "text", "text": "tem"}]},
        {"role": "user", "content": "ask", "name": "ada"},
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "thought"},
        {"role": "tool", "tool_call_id": "c", "content": "result"},
    ]
    tool = {"type": "function", "function": {"name": "look", "description": "described"}}
    async with guardrail_scene(tmp_path, valkey, (FINE,), checks="input") as scene:
        assert (await scene.ask(messages=messages, tools=[tool])).status_code == 200
    [[system, user, assistant, result, tools]] = texts_at(scene.hook)
    assert (system, user, assistant) == ("system", "ada\nask", 'thought\nlook\n{"q": "args"}')
    assert result == "result" and "described" in tools


async def test_token_ids_are_refused_since_nobody_could_check_them(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, (), on_failure="open") as scene:
        reply = await scene.ask("/completions", prompt=[1, 2, 3])
    assert (reply.status_code, error_of(reply)["param"]) == (400, "prompt")
    assert scene.hook.calls == scene.member.bodies == []


@both_engines
async def test_a_stream_is_cut_before_the_window_that_was_flagged(
    tmp_path: Path, valkey: ValkeyProcess, engine: Any
) -> None:
    async with guardrail_scene(
        tmp_path, valkey, (LONG,), engine=engine, checks="output", window_chars=len("one two ")
    ) as scene:
        reply = await scene.ask(stream=True, stream_options={"include_usage": True})
        [event] = durable_events(scene.gateway)
        scraped = await scene.scraped()
    assert heard(reply) == ("one two ", "content_filter")
    first, last = texts_at(scene.hook)
    # A window is seen together with the one before it.
    assert (first, last) == (["one two "], ["one two three a bomb "])
    figures = chunks_of(reply)[-1]
    assert figures["choices"] == []
    assert figures["usage"]["completion_tokens"] == event.completion_tokens > 0
    assert (event.status, event.finish_reason) == ("ok", "content_filter")
    assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400
    assert "tiergate_guardrail_hold_seconds_count 1.0" in scraped


@both_engines
async def test_the_member_stops_when_its_answer_is_cut(tmp_path: Path, valkey: ValkeyProcess, engine: Any) -> None:
    def forever(_: Json) -> Turn:
        return Turn(texts=["a bomb "] * 100_000)

    async with guardrail_scene(tmp_path, valkey, forever, engine=engine, checks="output", window_chars=20) as scene:
        reply = await scene.ask(stream=True)
        [event] = durable_events(scene.gateway)
    assert heard(reply) == ("", "content_filter")
    assert event.completion_tokens < 10_000


@both_engines
@both_forms
async def test_an_answer_that_passes_is_the_same(
    tmp_path: Path, valkey: ValkeyProcess, engine: Any, is_streamed: bool
) -> None:
    usage = {"stream_options": {"include_usage": True}} if is_streamed else {}
    async with guardrail_scene(tmp_path, valkey, (FINE,), engine=engine) as scene:
        reply = await scene.ask(stream=is_streamed, **usage)
        [event] = durable_events(scene.gateway)
    assert heard(reply) == ("All is well.", "stop")
    assert texts_at(scene.hook) == [["Hi there"], ["All is well."]]
    assert (event.status, event.finish_reason, event.completion_tokens) == ("ok", "stop", 5)
    assert "x-tiergate-guardrail" not in reply.headers


@both_engines
async def test_of_a_whole_answer_nothing_is_left_but_its_bill(
    tmp_path: Path, valkey: ValkeyProcess, engine: Any
) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG,), engine=engine) as scene:
        reply = await scene.ask()
        [event] = durable_events(scene.gateway)
    assert heard(reply) == ("", "content_filter")
    assert "bomb" not in reply.text
    assert (event.status, event.finish_reason, event.completion_tokens) == ("ok", "content_filter", 5)
    assert event.cost_nanousd == 11 * 100 + 5 * 400


@both_forms
async def test_calls_that_a_model_makes_are_texts_too(tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool) -> None:
    turn = Turn(texts=("Let me.",), calls=(("order", '{"what": "one bomb, please"}'),))
    tool = {"type": "function", "function": {"name": "order"}}
    async with guardrail_scene(tmp_path, valkey, (turn,), window_chars=5) as scene:
        reply = await scene.ask(stream=is_streamed, tools=[tool])
    assert heard(reply) == ("Let me." if is_streamed else "", "content_filter")
    assert "please" not in reply.text


async def test_only_the_chosen_categories_block(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, (FINE, FINE), flagged=("Hi",), categories=["hate"]) as scene:
        assert heard(await scene.ask()) == ("All is well.", "stop")
        [guardrail] = (await scene.gateway.admin.get("/guardrails")).json()["data"]
        changed = {"categories": ["hate", "violence"], "version": guardrail["version"]}
        reply = await scene.gateway.admin.patch(f"/guardrails/{guardrail['id']}", json=changed)
        assert reply.status_code == 200, reply.text
        assert error_of(await scene.ask())["code"] == "content_filter"


async def test_everybodys_guardrail_and_ones_own_are_both_asked(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, (FINE,), flagged=("secret",), checks="input") as scene:
        await scene.gateway.post("/guardrails", {"name": "all", "url": scene.hook.url, "checks": "input"})
        blocked = await scene.ask(messages=[{"role": "user", "content": "a secret"}])
        assert len(scene.hook.calls) == 2 and error_of(blocked)["code"] == "content_filter"
        [own] = [row for row in (await scene.gateway.admin.get("/guardrails")).json()["data"] if row["tenant_id"]]
        assert (await scene.gateway.admin.delete(f"/guardrails/{own['id']}")).status_code == 204
        assert heard(await scene.ask()) == ("All is well.", "stop")
        assert len(scene.hook.calls) == 3
        assert 'tiergate_guardrail_checks_total{guardrail="all",outcome="passed",side="input"} 1.0' in (
            await scene.scraped()
        )


def answering(body: Any, *, status: int = 200, content_type: str = "application/json") -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    return lambda _: web.Response(text=text, status=status, content_type=content_type)


PASSED = {"flagged": False}
LIES: dict[str, tuple[Any, str]] = {
    "too_many_results": (answering({"results": [PASSED, PASSED]}), "bad_answer"),
    "no_results": (answering({"results": []}), "bad_answer"),
    "not_json": (answering("{"), "bad_answer"),
    "html": (answering("<html>fine</html>", content_type="text/html"), "bad_answer"),
    "flagged_by_words": (answering({"results": [{"flagged": "false"}]}), "bad_answer"),
    "flagged_by_number": (answering({"results": [{"flagged": 0}]}), "bad_answer"),
    "scores_for_categories": (answering({"results": [{"flagged": False, "categories": {"hate": 0.9}}]}), "bad_answer"),
    "a_list": (answering([PASSED]), "bad_answer"),
    "deep": (answering("[" * 5000), "bad_answer"),
    "status_500": (answering({"results": [PASSED]}, status=500), "http_error"),
    "status_404": (answering({"results": [PASSED]}, status=404), "http_error"),
}
HOSTILE = {
    "endless_body": "too_large",
    "endless_chunks": "too_large",
    "slow_body": "timeout",
    "slow_headers": "timeout",
    "silent": "timeout",
    "promised": "timeout",
    "broken_off": "failed",
    "to_here": "redirect",
    "to_metadata": "redirect",
    "nonsense": "failed",
    "gzip_bomb": "bad_answer",
}


async def fails_closed_then_open(scene: GuardrailScene, **change: Any) -> None:
    """Of the scene's only guardrail, which checks inputs."""
    [guardrail] = (await scene.gateway.admin.get("/guardrails")).json()["data"]
    place, num_sent = f"/guardrails/{guardrail['id']}", len(scene.member.bodies)
    assert (await scene.gateway.admin.patch(place, json=change | {"on_failure": "closed"})).status_code == 200
    closed = await scene.ask()
    assert closed.status_code == 503, closed.text
    assert error_of(closed)["code"] == "guardrail_unavailable" and "'words'" in error_of(closed)["message"]
    assert closed.headers["retry-after"] == "1" and len(scene.member.bodies) == num_sent
    events = {event.request_id: event for event in durable_events(scene.gateway)}
    event = events[closed.headers["x-request-id"]]
    assert (event.status, event.cost_nanousd, event.error_code) == ("error", 0, "guardrail_unavailable")
    assert (await scene.gateway.admin.patch(place, json={"on_failure": "open"})).status_code == 200
    opened = await scene.ask()
    assert heard(opened) == ("All is well.", "stop")
    assert opened.headers["x-tiergate-guardrail"] == "skipped"


async def check_reasons(scene: GuardrailScene, reasons: Iterable[str]) -> None:
    """As the metrics tell them."""
    scraped = await scene.scraped()
    for reason, count in Counter(reasons).items():
        for choice in ("open", "closed"):
            labels = f'guardrail="(tenant\'s own)",on_failure="{choice}",reason="{reason}"'
            assert f"tiergate_guardrail_failures_total{{{labels}}} {count}.0" in scraped


async def test_an_answer_that_lies_is_none(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, lambda _: FINE, checks="input") as scene:
        for answers, _ in LIES.values():
            scene.hook.answers = answers
            await fails_closed_then_open(scene)
        await check_reasons(scene, (reason for _, reason in LIES.values()))


async def test_a_hostile_hook_harms_nobody(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with (
        serving_hostility() as hostile,
        guardrail_scene(tmp_path, valkey, lambda _: FINE, checks="input") as scene,
    ):
        for kind, reason in HOSTILE.items():
            deadline_ms = 200 if reason == "timeout" else 30_000
            await fails_closed_then_open(scene, url=f"{hostile.url}/{kind}", deadline_ms=deadline_ms)
        await fails_closed_then_open(scene, url="http://127.0.0.1:1/nobody", deadline_ms=30_000)
        await check_reasons(scene, [*HOSTILE.values(), "failed"])
    assert hostile.num_hits == 0
    assert hostile.num_bytes < 50_000_000


def fails_from(number: int) -> Any:
    """The hook's answers: good ones, and from this check on none."""
    good, bad = flagging("bomb"), answering("broken", status=500)
    count = 0

    def answer(asked: Json) -> Any:
        nonlocal count
        count += 1
        return good(asked) if count < number else bad(asked)

    return answer


@both_forms
@pytest.mark.parametrize("is_everybodys", [False, True])
async def test_an_answer_that_cannot_be_checked_is_billed_only_where_the_hook_is_the_tenants(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool, is_everybodys: bool
) -> None:
    async with guardrail_scene(tmp_path, valkey, (FINE,), checks="output") as scene:
        if is_everybodys:
            [own] = (await scene.gateway.admin.get("/guardrails")).json()["data"]
            await scene.gateway.admin.delete(f"/guardrails/{own['id']}")
            await scene.gateway.post("/guardrails", {"name": "all", "url": scene.hook.url, "checks": "output"})
        scene.hook.answers = answering("broken", status=500)
        reply = await scene.ask(stream=is_streamed)
        [event] = durable_events(scene.gateway)
    # Nothing was sent before the first window, so that a stream's failure has its status, too.
    assert (reply.status_code, error_of(reply)["code"]) == (503, "guardrail_unavailable")
    assert event.error_code == "guardrail_unavailable"
    if is_everybodys:
        assert (event.status, event.cost_nanousd) == ("error", 0)
    else:
        assert event.status == "cancelled" and event.cost_nanousd >= 5 * 400


async def test_a_failure_in_mid_stream_is_the_streams_last_event(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG,), checks="output", window_chars=4) as scene:
        scene.hook.answers = fails_from(2)
        reply = await scene.ask(stream=True)
    events = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "guardrail_unavailable"
    assert "two" not in reply.text


async def test_a_window_that_was_skipped_in_mid_stream_is_told_by_a_comment(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with guardrail_scene(
        tmp_path, valkey, (LONG,), flagged=("none",), checks="output", window_chars=12, on_failure="open"
    ) as scene:
        scene.hook.answers = fails_from(2)
        reply = await scene.ask(stream=True)
    assert heard(reply) == ("".join(LONG.texts), "stop")
    assert "x-tiergate-guardrail" not in reply.headers
    assert ": guardrail skipped\n\n" in reply.text


@pytest.mark.parametrize("checks", ["input", "output"])
@both_forms
async def test_a_client_that_leaves_during_a_check_leaves_nothing_behind(
    tmp_path: Path, valkey: ValkeyProcess, checks: str, is_streamed: bool
) -> None:
    async with guardrail_scene(tmp_path, valkey, (FINE,), checks=checks) as scene:
        scene.hook.is_stuck = True
        asking = asyncio.create_task(scene.ask(stream=is_streamed))
        async with asyncio.timeout(30):
            await scene.hook.was_asked.wait()
        asking.cancel()
        async with asyncio.timeout(30):
            await scene.hook.was_left.wait()
        await eventually(lambda: durable_events(scene.gateway))
        await eventually(lambda: scene.gateway.services.metrics.num_in_flight == 0)
        [event] = durable_events(scene.gateway)
        assert event.status == "cancelled"
        assert (event.cost_nanousd > 0) == (checks == "output")
        assert len(scene.member.bodies) == (checks == "output")
        assert not scene.gateway.services.guard._under_way


async def test_a_blocked_answer_is_replayed_and_a_blocked_request_asked_again(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG,)) as scene:
        first, second = [await scene.ask(headers={"Idempotency-Key": "a"}) for _ in range(2)]
        assert heard(first) == heard(second) == ("", "content_filter")
        assert second.headers["idempotent-replayed"] == "true" and first.content == second.content
        assert len(durable_events(scene.gateway)) == 1
        bomb = [{"role": "user", "content": "bomb"}]
        third, fourth = [await scene.ask(headers={"Idempotency-Key": "b"}, messages=bomb) for _ in range(2)]
        assert [third.status_code, fourth.status_code] == [400, 400]
        assert "idempotent-replayed" not in fourth.headers


@both_forms
async def test_a_response_is_incomplete_where_it_was_blocked(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG,), window_chars=8) as scene:
        client = openai.AsyncOpenAI(base_url=scene.gateway.base_url, api_key=scene.key)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="small", input="a bomb")
        assert (refused.value.code, refused.value.param) == ("content_filter", "input")
        if is_streamed:
            events = [event async for event in await client.responses.create(model="small", input="Hi", stream=True)]
            response: Any = events[-1].response  # type: ignore[union-attr]
        else:
            response = await client.responses.create(model="small", input="Hi")
        await client.close()
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "content_filter")
    assert response.output_text == ("one two " if is_streamed else "")


async def test_a_session_keeps_what_its_client_was_sent(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG, FINE), window_chars=8) as scene:
        named = {"X-Session-Id": "s"}
        refused = await scene.ask(headers=named, messages=[{"role": "user", "content": "a bomb"}])
        assert refused.status_code == 400
        assert heard(await scene.ask(headers=named, stream=True)) == ("one two ", "content_filter")
        assert heard(await scene.ask(headers=named, messages=[{"role": "user", "content": "Go on"}])) == (
            "All is well.",
            "stop",
        )
    assert [each["content"] for each in scene.member.bodies[-1]["messages"]] == ["Hi there", "one two ", "Go on"]


async def test_what_a_servers_tool_answered_is_checked_before_the_model_sees_it(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    ask = Turn(calls=(("look", "{}"),))
    async with (
        guardrail_scene(tmp_path, valkey, (ask, FINE), tool_hosts=("127.0.0.1",)) as scene,
        serving_tool(answers=lambda _: {"found": "a bomb"}) as tool,
    ):
        draft = {"name": "look", "description": "d", "parameters": {"type": "object"}, "url": tool.url}
        await scene.gateway.post("/tools", draft)
        reply = await scene.ask(server_tools=["look"])
    assert (reply.status_code, error_of(reply)["code"]) == (400, "content_filter")
    assert len(tool.calls) == len(scene.member.bodies) == 1


@both_forms
async def test_an_answer_from_the_cache_is_checked_again_and_a_blocked_one_not_kept(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    async with guardrail_scene(tmp_path, valkey, (LONG, FINE, FINE), flagged=("bomb",)) as scene:
        policy = {"mode": "exact", "is_default": True}
        assert (await scene.gateway.admin.patch(f"/tenants/{scene.tenant_id}/cache", json=policy)).status_code == 200
        asked = {"temperature": 0, "stream": is_streamed}
        blocked, made, again = [await scene.ask(**asked) for _ in range(3)]
        assert heard(blocked) == ("", "content_filter")
        assert heard(made) == heard(again) == ("All is well.", "stop")
        assert [reply.headers["x-tiergate-cache"] for reply in (blocked, made, again)] == ["miss", "miss", "hit"]
        assert len(texts_at(scene.hook)) == 6 and len(scene.member.bodies) == 2
        scene.hook.answers = flagging("well")
        cut = await scene.ask(**asked)
        assert (heard(cut), cut.headers["x-tiergate-cache"]) == (("", "content_filter"), "hit")
        scene.hook.answers = flagging("Hi")
        assert error_of(await scene.ask(**asked))["code"] == "content_filter"
        assert len(scene.member.bodies) == 2
