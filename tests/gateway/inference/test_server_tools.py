"""Tools that the platform calls: rounds, what is billed for them, and what the client gets."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from protocol.usage import UsageEvent
from tests.support.gateways import durable_events, eventually
from tests.support.otlp import attributes, serving_collector
from tests.support.scripted_members import Json, Turn
from tests.support.server_tool_scenes import BODY, SCHEMA, Engine, scene
from tests.support.valkey import ValkeyProcess

MINE: Json = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
PARIS = ("weather", '{"city": "Paris"}')
OSLO = ("weather", '{"city": "Oslo"}')
ASK = Turn(texts=("Let me ", "look. "), calls=(PARIS,), prompt_tokens=20, completion_tokens=7)
ANSWER = Turn(texts=("It is ", "sunny."), prompt_tokens=40, completion_tokens=6)
both_engines = pytest.mark.parametrize("engine", ["openai", "tiergate"])
both_forms = pytest.mark.parametrize("is_streamed", [False, True])


def chunks_of(stream: bytes) -> list[Json]:
    events = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


def heard(reply: httpx.Response) -> Json:
    """Text, calls, finish reason and usage, of a stream or a whole answer."""
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        body = reply.json()
        choice = body["choices"][0]
        message = choice["message"]
        return {
            "text": message["content"],
            "calls": message.get("tool_calls"),
            "reason": choice["finish_reason"],
            "usage": body["usage"],
        }
    chunks = chunks_of(reply.content)
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    [reason] = [
        chunk["choices"][0]["finish_reason"]
        for chunk in chunks
        if chunk["choices"] and chunk["choices"][0]["finish_reason"]
    ]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return {
        "text": "".join(delta.get("content") or "" for delta in deltas),
        "calls": [{name: value for name, value in call.items() if name != "index"} for call in calls] or None,
        "reason": reason,
        "usage": usages[0] if usages else None,
    }


def streamed(is_streamed: bool) -> Json:
    return {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}


def tokens(events: Sequence[UsageEvent]) -> tuple[int, int]:
    return sum(event.prompt_tokens for event in events), sum(event.completion_tokens for event in events)


@both_engines
@both_forms
async def test_the_platform_calls_the_tool_and_the_client_gets_one_answer_and_one_sum(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine, is_streamed: bool
) -> None:
    async with scene(tmp_path, valkey, (ASK, ANSWER), engine=engine, tool={"answers": lambda _: {"sky": "blue"}}) as it:
        reply = await it.ask(**streamed(is_streamed))
        events = durable_events(it.gateway)
        [detail] = await it.until_audited(1)
        async with httpx.AsyncClient() as scraper:
            scraped = (await scraper.get(f"{it.gateway.origin}/metrics")).text
    assert 'tiergate_tool_calls_total{status="ok",tool="weather"} 1.0' in scraped
    assert 'tiergate_tool_call_seconds_count{tool="weather"} 1.0' in scraped
    said = heard(reply)
    assert said["text"] == ("Let me look. It is sunny." if is_streamed else "It is sunny.")
    assert (said["calls"], said["reason"]) == (None, "stop")
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (60, 13, 73)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert "weather" not in reply.text.replace("Let me look", "")
    assert [arguments for _, arguments in it.tool.calls] == [{"city": "Paris"}]
    first, second = it.member.bodies
    assert "server_tools" not in first and "server_tools" not in second
    assert first["tools"] == [
        {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA}}
    ]
    asked, answered = second["messages"][1:]
    assert asked["tool_calls"][0]["function"] == {"name": PARIS[0], "arguments": PARIS[1]}
    assert asked["content"] == "Let me look. "
    assert answered == {
        "role": "tool",
        "tool_call_id": asked["tool_calls"][0]["id"],
        "content": answered["content"],
    }
    assert json.loads(answered["content"]) == {"sky": "blue"}
    # A usage event a round; together they are what the client was shown.
    assert tokens(events) == (60, 13) and {event.status for event in events} == {"ok"}
    rounds = sorted(events, key=lambda event: event.timestamp)
    assert [event.request_id == reply.headers["x-request-id"] for event in rounds] == [True, False]
    assert [event.client_request_id for event in rounds] == [None, reply.headers["x-request-id"]]
    assert sum(event.cost_nanousd for event in events) == 60 * 100 + 13 * 400
    assert detail.pop("duration_ms") > 0 and detail.pop("call_id").startswith(rounds[0].request_id)
    assert detail == {
        "tool": "weather",
        "request_id": rounds[0].request_id,
        "status": "ok",
        "http_status": 200,
        "num_bytes": 15,
    }
    if not is_streamed:
        assert reply.headers["x-tiergate-tool-rounds"] == "2"


async def test_openais_client_needs_only_an_extra_field(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, (ASK, ANSWER, ASK, ANSWER)) as it:
        client = openai.AsyncOpenAI(base_url=it.gateway.base_url, api_key=it.key)
        extra = {"server_tools": ["weather"]}
        messages: Any = BODY["messages"]
        whole = await client.chat.completions.create(model="small", messages=messages, extra_body=extra)
        async with client.chat.completions.stream(model="small", messages=messages, extra_body=extra) as stream:
            final = await stream.get_final_completion()
        await client.close()
    assert whole.choices[0].message.content == "It is sunny." and whole.usage is not None
    assert whole.usage.total_tokens == 73
    assert final.choices[0].message.content == "Let me look. It is sunny."
    assert final.choices[0].finish_reason == "stop"


async def test_calls_of_one_round_run_at_the_same_time(tmp_path: Path, valkey: ValkeyProcess) -> None:
    under_way = asyncio.Barrier(2)

    async def wait_for_the_other(arguments: Json) -> web.Response:
        async with asyncio.timeout(20):
            await under_way.wait()
        return web.json_response(arguments["city"])

    both = Turn(calls=(OSLO, PARIS))
    async with scene(tmp_path, valkey, (both, ANSWER), tool={"answers": wait_for_the_other}) as it:
        assert heard(await it.ask())["reason"] == "stop"
    results = it.member.bodies[1]["messages"][-2:]
    assert [json.loads(result["content"]) for result in results] == ["Oslo", "Paris"]
    assert [result["tool_call_id"] for result in results] == ["call0", "call1"]


async def test_after_the_last_round_the_model_must_answer(tmp_path: Path, valkey: ValkeyProcess) -> None:
    def ask_while_there_are_tools(body: Json) -> Turn:
        return ASK if "tools" in body else ANSWER

    async with scene(tmp_path, valkey, ask_while_there_are_tools, registered={"max_rounds": 2}) as it:
        for is_streamed in (False, True):
            it.member.bodies.clear()
            it.tool.calls.clear()
            said = heard(await it.ask(**streamed(is_streamed), tool_choice="auto", parallel_tool_calls=True))
            assert ["tools" in body for body in it.member.bodies] == [True, True, False]
            assert not {"tool_choice", "parallel_tool_calls"} & it.member.bodies[2].keys()
            assert said["reason"] == "stop" and said["text"].endswith("It is sunny.") and len(it.tool.calls) == 2
            assert (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"]) == (80, 20)
        assert tokens(durable_events(it.gateway)) == (160, 40)


async def test_a_model_that_goes_on_asking_is_cut_off_and_the_client_told_so(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with scene(tmp_path, valkey, lambda _: ASK, tool_max_rounds=1) as it:
        for is_streamed in (False, True):
            said = heard(await it.ask(**streamed(is_streamed)))
            assert (said["reason"], said["calls"]) == ("length", None)
    assert (len(it.member.bodies), len(it.tool.calls)) == (4, 2)


@both_engines
@both_forms
async def test_the_platforms_tools_come_first_and_the_clients_calls_reach_the_client(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine, is_streamed: bool
) -> None:
    mixed = Turn(calls=(("mine", '{"a": 1}'), PARIS))
    own = Turn(calls=(("mine", '{"a": 2}'), ("mine", '{"a": 3}')))
    async with scene(tmp_path, valkey, (mixed, own), engine=engine) as it:
        said = heard(await it.ask(tools=[MINE], tool_choice="auto", **streamed(is_streamed)))
    assert [tool["function"]["name"] for tool in it.member.bodies[0]["tools"]] == ["mine", "weather"]
    asked, answered = it.member.bodies[1]["messages"][1:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["weather"]
    assert answered["tool_call_id"] == asked["tool_calls"][0]["id"] == "call1"
    assert said["reason"] == "tool_calls"
    assert [call["function"] for call in said["calls"]] == [
        {"name": "mine", "arguments": '{"a": 2}'},
        {"name": "mine", "arguments": '{"a": 3}'},
    ]


async def test_what_the_client_allowed_holds_in_every_round(tmp_path: Path, valkey: ValkeyProcess) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    allowed = {"mode": "required", "tools": [named]}
    async with scene(tmp_path, valkey, (ASK, ASK, ANSWER), engine="tiergate", registered={"max_rounds": 2}) as it:
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        assert heard(await it.ask(tools=[MINE], tool_choice=choice))["text"] == "It is sunny."
    free = {"type": "allowed_tools", "allowed_tools": allowed | {"mode": "auto"}}
    # In the last round the only tool that was allowed is no longer offered.
    assert [body.get("tool_choice") for body in it.member.bodies] == [choice, free, "none"]


async def test_a_call_that_was_cut_off_is_not_made(tmp_path: Path, valkey: ValkeyProcess) -> None:
    cut = Turn(calls=(("weather", '{"city": "Pa'),), finish_reason="length")
    async with scene(tmp_path, valkey, (cut,)) as it:
        said = heard(await it.ask())
    assert (said["reason"], said["calls"], it.tool.calls) == ("length", None, [])


async def test_no_tools_are_offered_where_the_client_wants_none(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, (ANSWER,)) as it:
        assert heard(await it.ask(tool_choice="none"))["text"] == "It is sunny."
    assert "tools" not in it.member.bodies[0]


async def test_max_tokens_bounds_all_rounds_together(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, lambda _: ASK) as it:
        for is_streamed in (False, True):
            said = heard(await it.ask(max_completion_tokens=14, **streamed(is_streamed)))
            assert (said["reason"], said["calls"]) == ("length", None)
    assert [body["max_tokens"] for body in it.member.bodies] == [14, 7] * 2
    assert len(it.tool.calls) == 2


@both_forms
async def test_a_budget_that_ends_after_a_round_ends_the_request_and_the_round_stays_billed(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    quiet = Turn(calls=(PARIS,), prompt_tokens=20, completion_tokens=7)
    # Room for the first round's reservation and not for a second one after it.
    tier = {"budget_nanousd_per_month": 440_000, "default_max_tokens": 100}
    dear = Turn(calls=(PARIS,), prompt_tokens=4_000, completion_tokens=7)
    for turn, num_rounds in ((quiet, 2), (dear, 1)):
        folder = tmp_path / str(num_rounds)
        async with scene(folder, valkey, (turn, ANSWER), tier=tier) as it:
            reply = await it.ask(stream=is_streamed)
            await eventually(lambda it=it: len(it.tool.calls) == 1)
            events = durable_events(it.gateway)
            assert len(events) == len(it.member.bodies) == num_rounds
            if num_rounds == 2:
                assert reply.status_code == 200 and "x-should-retry" not in reply.headers
                continue
        if is_streamed:
            assert '"code":"budget"' in reply.text and "[DONE]" not in reply.text
        else:
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "budget")
            assert reply.headers["x-should-retry"] == "false" and int(reply.headers["retry-after"]) > 0
        [event] = events
        assert (event.status, event.cost_nanousd) == ("ok", 4_000 * 100 + 7 * 400)


async def test_a_concurrency_of_one_is_enough_and_free_again_afterwards(tmp_path: Path, valkey: ValkeyProcess) -> None:
    script = (ASK, ASK, ANSWER) * 4
    async with scene(tmp_path, valkey, script, engine="tiergate", tier={"concurrency": 1}) as it:
        for is_streamed in (False, True) * 2:
            assert heard(await it.ask(**streamed(is_streamed)))["text"].endswith("It is sunny.")
        assert len(durable_events(it.gateway)) == 12


async def test_each_round_counts_as_a_request(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, (ASK, ANSWER, ASK), tier={"requests_per_minute": 3}) as it:
        reply = await it.ask()
        assert reply.headers["x-ratelimit-remaining-requests"] == "1"
        refused = await it.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "requests_per_minute")
    assert refused.headers["x-should-retry"] == "false" and len(it.tool.calls) == 2


async def test_a_tool_that_fails_is_told_to_the_model_and_the_request_goes_on(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    wrong = Turn(calls=(("weather", '{"city": 5}'), ("weather", "{"), PARIS))
    broken = {"answers": lambda _: web.Response(status=500)}
    async with scene(tmp_path, valkey, (wrong, ANSWER), tool=broken) as it:
        assert heard(await it.ask())["text"] == "It is sunny."
        audited = await it.until_audited(3)
    told = [json.loads(result["content"])["error"] for result in it.member.bodies[1]["messages"][-3:]]
    assert told[0].startswith('arguments.city: 5 is not of type "string"')
    assert told[1].startswith("the arguments are no JSON")
    assert told[2] == "the tool failed: it answered 500"
    assert sorted(detail["status"] for detail in audited) == ["bad_arguments", "bad_arguments", "http_error"]


@both_forms
async def test_a_tool_that_nobody_offered_is_told_to_the_model_and_not_to_the_client(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    invented = Turn(calls=(("current", '{"city": "Paris"}'), PARIS))
    async with scene(tmp_path, valkey, (invented, ANSWER)) as it:
        said = heard(await it.ask(**streamed(is_streamed)))
    told = [message["content"] for message in it.member.bodies[1]["messages"][-2:]]
    assert "there is no tool 'current'" in json.loads(told[0])["error"] and "error" not in told[1]
    assert (said["reason"], said["calls"], len(it.tool.calls)) == ("stop", None, 1)


async def test_more_calls_than_a_round_may_have_are_told_so(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, (Turn(calls=[PARIS] * 20), ANSWER)) as it:
        assert heard(await it.ask())["reason"] == "stop"
    results = it.member.bodies[1]["messages"][-20:]
    assert (
        len(it.tool.calls) == 16 and ["error" in result["content"] for result in results] == [False] * 16 + [True] * 4
    )
    assert len({result["tool_call_id"] for result in results}) == 20


@both_forms
async def test_a_client_that_leaves_ends_the_call_of_the_tool(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    stuck = {"is_stuck": True}
    async with scene(tmp_path, valkey, (ASK,), tool=stuck, registered={"timeout_s": 60}) as it:
        async with it.client() as client, asyncio.TaskGroup() as group:
            asking = group.create_task(client.post("/chat/completions", json=BODY | streamed(is_streamed)))
            async with asyncio.timeout(20):
                await it.tool.was_asked.wait()
            asking.cancel()
        async with asyncio.timeout(20):
            await it.tool.was_left.wait()
        [detail] = await it.until_audited(1)
        events = durable_events(it.gateway)
        metrics = it.gateway.services.metrics
        await eventually(lambda: metrics.num_in_flight == 0)
    assert detail["status"] == "cancelled"
    assert [(event.status, event.completion_tokens) for event in events] == [("ok", 7)]


async def test_a_member_that_fails_in_a_later_round_leaves_the_first_one_billed(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with scene(tmp_path, valkey, (ASK,)) as it:
        # The script has no second answer, which is a 500 of the member.
        reply = await it.ask()
        events = durable_events(it.gateway)
    assert reply.status_code >= 500 and reply.headers["x-should-retry"] == "false"
    assert [(event.status, event.cost_nanousd > 0) for event in sorted(events, key=lambda e: e.timestamp)] == [
        ("ok", True),
        ("error", False),
    ]


async def test_what_cannot_be_meant_is_refused_and_named(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, ()) as it:
        other = await it.gateway.post("/tenants", {"name": "other", "tier": "pro"})
        await it.register("theirs", tenant_id=other["id"])
        await it.register("off", is_enabled=False)
        for fields, param in (
            ({"server_tools": ["none"]}, "server_tools[0]"),
            ({"server_tools": ["weather", "theirs"]}, "server_tools[1]"),
            ({"server_tools": ["off"]}, "server_tools[0]"),
            ({"server_tools": [""]}, "server_tools[0]"),
            ({"server_tools": ["weather", "weather"]}, "server_tools[1]"),
            ({"server_tools": ["x" * 65]}, "server_tools[0]"),
            ({"server_tools": ["weather"] * 33}, "server_tools"),
            ({"server_tools": "weather"}, "server_tools"),
            ({"server_tools": [{"name": "weather"}]}, "server_tools[0]"),
            ({"tools": [{"type": "function", "function": {"name": "weather"}}]}, "server_tools[0]"),
            ({"functions": [{"name": "mine"}]}, "functions"),
            ({"function_call": "auto"}, "function_call"),
            ({"n": 2}, "n"),
            ({"echo": True}, "echo"),
            ({"add_generation_prompt": False}, "add_generation_prompt"),
        ):
            reply = await it.ask(**fields)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (fields, reply.text)
        assert durable_events(it.gateway) == []
        async with it.client() as client:
            text = await client.post(
                "/completions", json={"model": "small", "prompt": "a", "server_tools": ["weather"]}
            )
        assert text.status_code == 400
    assert it.member.bodies == []


async def test_no_server_tools_are_a_request_like_any_other(tmp_path: Path, valkey: ValkeyProcess) -> None:
    for engine in ("openai", "tiergate"):
        async with scene(tmp_path / engine, valkey, (ANSWER, ANSWER), engine=engine) as it:  # type: ignore[arg-type]
            for empty in ([], None):
                reply = await it.ask(server_tools=empty)
                assert heard(reply)["text"] == "It is sunny." and "x-tiergate-tool-rounds" not in reply.headers
        assert all("server_tools" not in body for body in it.member.bodies)


async def test_rounds_and_calls_are_spans_of_one_trace(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(serving_collector())
        # The gateway exports at its end.
        async with scene(tmp_path, valkey, (ASK, ANSWER), otlp_endpoint=collector.url) as it:
            assert heard(await it.ask())["reason"] == "stop"
    [request], [second], [called] = map(
        collector.named, ("POST /v1/chat/completions", "round 2", "execute_tool weather")
    )
    calls = collector.named("chat m")
    assert {span.parent_span_id for span in calls} == {request.span_id, second.span_id}
    assert called.parent_span_id == second.parent_span_id == request.span_id
    assert attributes(called) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.type": "extension",
    }
    assert not any(b"Paris" in body or b"sunny" in body for body in collector.received)


async def test_auto_chooses_once_and_the_headers_tell_of_that(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with scene(tmp_path, valkey, (ASK, ASK, ANSWER)) as it:
        reply = await it.ask(model="auto")
        events = sorted(durable_events(it.gateway), key=lambda event: event.timestamp)
    assert [event.requested_model for event in events] == ["auto", "small", "small"]
    assert {event.model_version for event in events} == {"m"}
    assert reply.headers["x-tiergate-route"] == events[0].route_reason != "requested"
    assert "x-tiergate-complexity" in reply.headers
