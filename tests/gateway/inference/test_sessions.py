"""Requests with X-Session-Id: what the member is asked, what is kept, and what a failure leaves."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from aiohttp import web

from tests.support.gateways import durable_events, eventually
from tests.support.scripted_members import Json, Turn
from tests.support.server_tool_scenes import Engine
from tests.support.session_scenes import session_scene, system, user
from tests.support.valkey import ValkeyProcess

both_engines = pytest.mark.parametrize("engine", ["openai", "tiergate"])
both_forms = pytest.mark.parametrize("is_streamed", [False, True])
WEATHER: Json = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def said(*texts: str) -> list[Turn]:
    return [Turn(texts=(text,)) for text in texts]


def echo(body: Json) -> Turn:
    return Turn(texts=("re: ", body["messages"][-1]["content"]))


def error_of(reply: httpx.Response) -> tuple[int, str | None, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


@both_engines
@both_forms
async def test_what_was_said_stands_before_what_is_sent(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine, is_streamed: bool
) -> None:
    async with session_scene(tmp_path, valkey, said("Hi Ada.", "Ada."), engine=engine) as scene:
        first = await scene.ask(system("Be brief."), "I am Ada.", stream=is_streamed)
        second = await scene.ask("Who am I?", stream=is_streamed)
        assert (first.status_code, second.status_code) == (200, 200), second.text
        assert [reply.headers["x-tiergate-session-messages"] for reply in (first, second)] == ["0", "2"]
        assert scene.seen(0) == [("system", "Be brief."), ("user", "I am Ada.")]
        assert scene.seen(1) == [
            ("system", "Be brief."),
            ("user", "I am Ada."),
            ("assistant", "Hi Ada."),
            ("user", "Who am I?"),
        ]
        kept = await scene.read()
        assert [message["content"] for message in kept["messages"]][-1] == "Ada."
        assert (kept["num_turns"], kept["num_messages"]) == (2, 5)
        await eventually(lambda: len(durable_events(scene.gateway)) == 2)
        assert {event.session_id for event in durable_events(scene.gateway)} == {"s"}


async def test_a_system_prompt_of_the_request_takes_the_place_of_the_kept_one(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        await scene.ask(system("Be brief."), "one")
        await scene.ask({"role": "developer", "content": "Be long."}, "two")
        await scene.ask("three")
        assert scene.seen()[0] == ("developer", "Be long.")
        assert [role for role, _ in scene.seen()] == ["developer", *["user", "assistant"] * 2, "user"]


@both_forms
async def test_a_call_and_its_result_are_one_turn_over_two_requests(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    script = [Turn(calls=(("weather", '{"city": "Oslo"}'),)), Turn(texts=("Sunny.",)), Turn(texts=("Bye.",))]
    async with session_scene(tmp_path, valkey, script) as scene:
        await scene.ask("Weather?", tools=[WEATHER], stream=is_streamed)
        early = await scene.ask("Well?", tools=[WEATHER])
        assert error_of(early) == (400, None, "messages")
        assert "the session's messages[1].tool_calls[0]" in early.json()["error"]["message"]
        result = {"role": "tool", "tool_call_id": "call0", "content": "sun"}
        reply = await scene.ask(result, tools=[WEATHER], stream=is_streamed)
        assert reply.status_code == 200, reply.text
        asked = scene.member.bodies[1]["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
        assert asked[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
        await scene.ask("Bye", stream=is_streamed)
        assert (await scene.read())["num_turns"] == 2
        unknown = await scene.ask({**result, "tool_call_id": "other"})
        # The place is the client's own, not that in the whole conversation.
        assert error_of(unknown) == (400, None, "messages[0].tool_call_id")


async def test_histories_need_not_alternate(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        assistant = {"role": "assistant", "content": "Welcome."}
        for sent in ([assistant, "a"], ["b", "c"], [system("S"), "d", assistant, assistant, "e"]):
            assert (await scene.ask(*sent)).status_code == 200
        roles = [role for role, _ in scene.seen()]
        assert " ".join(roles) == "system assistant user assistant user user assistant user assistant assistant user"
        assert (await scene.read())["num_turns"] == 5


async def test_structured_answers_are_kept_as_they_were_said(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, said('{"a": 1}', "ok")) as scene:
        await scene.ask("json", response_format={"type": "json_object"})
        await scene.ask("go on")
        assert scene.seen()[1] == ("assistant", '{"a": 1}')


@both_forms
async def test_a_turn_that_failed_leaves_nothing(tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool) -> None:
    async with session_scene(tmp_path, valkey, [Turn(texts=("half",), finish_reason="error"), *said("ok")]) as scene:
        await scene.ask("one", stream=is_streamed)
        assert (await scene.ask("one, again", stream=is_streamed)).status_code == 200
        assert scene.seen() == [("user", "one, again")]


async def test_a_request_that_the_member_refuses_leaves_the_session_as_it_was(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        await scene.ask("one")

        async def refuse(_request: web.Request) -> web.Response:
            error = {"message": "no", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)

        scene.member.interrupt = refuse
        assert (await scene.ask("two")).status_code == 400
        scene.member.interrupt = None
        assert (await scene.ask("three")).status_code == 200
        assert [text for _, text in scene.seen()] == ["one", "re: one", "three"]


class Gate:
    """Holds a member's answers until it is opened."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.opened = asyncio.Event()

    async def wait(self, _request: web.Request) -> None:
        self.num_waiting += 1
        await self.opened.wait()


async def test_a_second_request_of_a_busy_session_is_refused_and_so_is_its_deletion(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        gate = Gate()
        scene.member.interrupt = gate.wait
        first = asyncio.create_task(scene.ask("one"))
        await eventually(lambda: gate.num_waiting == 1)
        assert error_of(await scene.ask("two")) == (409, "session_busy", None)
        async with scene.client() as client:
            assert error_of(await client.delete("/sessions/s"))[:2] == (409, "session_busy")
        other = asyncio.create_task(scene.ask("other", session="other"))
        await eventually(lambda: gate.num_waiting == 2)
        gate.opened.set()
        assert [(await each).status_code for each in (first, other)] == [200, 200]
        assert (await scene.ask("two")).status_code == 200
        assert [text for _, text in scene.seen()] == ["one", "re: one", "two"]


async def test_many_at_once_never_interleave(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        replies = await asyncio.gather(*(scene.ask(f"{i}") for i in range(20)))
        done = [reply for reply in replies if reply.status_code == 200]
        assert done and {reply.status_code for reply in replies} <= {200, 409}
        texts = [message["content"] for message in (await scene.read())["messages"]]
        assert len(texts) == 2 * len(done)
        assert all(answer == f"re: {asked}" for asked, answer in zip(texts[::2], texts[1::2], strict=True))


async def test_a_client_that_leaves_frees_its_session_and_leaves_nothing(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        gate = Gate()
        scene.member.interrupt = gate.wait
        leaving = asyncio.create_task(scene.ask("one"))
        await eventually(lambda: gate.num_waiting == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        scene.member.interrupt = None
        # Far sooner than a lease ends.
        assert (await scene.ask_until_not(409, "two")).status_code == 200
        assert scene.seen() == [("user", "two")]
        gate.opened.set()


async def test_a_lease_ends_with_its_holder(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        with redis.Redis.from_url(valkey.url) as keys:
            # As a gateway that was killed left it.
            keys.set(f"ctx-lease:{{{scene.tenant_id}}}:s", "dead", px=500)
            assert (await scene.ask_until_not(409, "one")).status_code == 200
            gate = Gate()
            scene.member.interrupt = gate.wait
            held = asyncio.create_task(scene.ask("two"))
            await eventually(lambda: gate.num_waiting == 1)
            left_ms: Any = keys.pttl(f"ctx-lease:{{{scene.tenant_id}}}:s")
            assert 0 < left_ms <= 15_000
            gate.opened.set()
            assert (await held).status_code == 200
            assert keys.exists(f"ctx-lease:{{{scene.tenant_id}}}:s") == 0
            # A sliding hour.
            assert 3_500 < int(str(keys.ttl(f"ctx:{{{scene.tenant_id}}}:s"))) <= 3_600


async def test_another_tenants_session_of_the_same_name_is_another_session(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        await scene.ask("mine")
        async with scene.gateway.client(await scene.gateway.make_key()) as other:
            assert (await other.get("/sessions/s")).status_code == 404
            assert (await other.get("/sessions")).json()["data"] == []
            assert (await other.delete("/sessions/s")).status_code == 404
            assert (await other.post("/sessions/s/branch", json={"id": "t"})).status_code == 404
            body = {"model": "small", "messages": [user("theirs")]}
            reply = await other.post("/chat/completions", json=body, headers={"X-Session-Id": "s"})
            assert reply.status_code == 200
        assert scene.seen() == [("user", "theirs")]
        assert [message["content"] for message in (await scene.read())["messages"]] == ["mine", "re: mine"]


BAD_INPUT: list[tuple[str, Json, tuple[int, str | None, str]]] = [
    ("x" * 10_000, {}, (400, None, "X-Session-Id")),
    ("a b", {}, (400, None, "X-Session-Id")),
    ("", {}, (400, None, "X-Session-Id")),
    ("s", {"n": 2}, (400, "unsupported", "n")),
    ("s", {"echo": True}, (400, "unsupported", "echo")),
    ("s", {"truncate_prompt_tokens": 5}, (400, "unsupported", "truncate_prompt_tokens")),
    ("s", {"functions": [{"name": "f"}]}, (400, "unsupported", "functions")),
    ("s", {"messages": [system("alone")]}, (400, None, "messages")),
    ("s", {"messages": [user("a"), user("")]}, (400, None, "messages[1].content")),
    ("s", {"messages": [user("x" * 3000)]}, (400, "session_too_large", "messages")),
]


async def test_bad_input_names_its_place_and_leaves_nothing(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo, session_max_bytes=2000) as scene:
        for session, fields, expected in BAD_INPUT:
            assert error_of(await scene.ask("hi", session=session, **fields)) == expected
        assert scene.member.bodies == []
        async with scene.client() as client:
            assert (await client.get("/sessions")).json() == {"data": [], "next": None}
        assert (await scene.ask("hi")).status_code == 200


async def test_sessions_are_for_chats(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, scene.client() as client:
        for path, body in (
            ("/completions", {"prompt": "hi"}),
            ("/embeddings", {"input": "hi"}),
            ("/route", {"messages": [user("hi")]}),
        ):
            reply = await client.post(path, json={"model": "small"} | body, headers={"X-Session-Id": "s"})
            assert error_of(reply) == (400, None, "X-Session-Id")


async def test_a_tenant_has_at_most_so_many(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo, sessions_per_tenant=2) as scene:
        for name in ("a", "b"):
            assert (await scene.ask("hi", session=name)).status_code == 200
        assert error_of(await scene.ask("hi", session="c"))[:2] == (400, "too_many_sessions")
        async with scene.client() as client:
            assert error_of(await client.post("/sessions/a/branch", json={"id": "c"}))[1] == "too_many_sessions"
            assert (await client.delete("/sessions/a")).status_code == 204
        assert (await scene.ask("hi", session="c")).status_code == 200


async def test_sessions_are_listed_read_branched_and_deleted(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, scene.client() as client:
        for name in ("b", "a", "c"):
            await scene.ask(system("S"), "one", session=name)
        await scene.ask("two", session="a")
        page = (await client.get("/sessions", params={"limit": 2})).json()
        assert ([each["id"] for each in page["data"]], page["next"]) == (["a", "b"], "b")
        rest = (await client.get("/sessions", params={"limit": 2, "after": "b"})).json()
        assert ([each["id"] for each in rest["data"]], rest["next"]) == (["c"], None)
        branch = await client.post("/sessions/a/branch", json={"id": "d", "turns": 1})
        assert branch.status_code == 201
        assert [message["content"] for message in branch.json()["messages"]] == ["S", "one", "re: one"]
        await scene.ask("three", session="d")
        assert [text for _, text in scene.seen()] == ["S", "one", "re: one", "three"]
        assert (await scene.read("a"))["num_turns"] == 2
        assert error_of(await client.post("/sessions/a/branch", json={"id": "b"})) == (409, "conflict", "id")
        assert error_of(await client.post("/sessions/a/branch", json={"id": "e", "turns": 3}))[2] == "turns"
        assert error_of(await client.post("/sessions/none/branch", json={"id": "e"}))[0] == 404
        assert (await client.delete("/sessions/a")).status_code == 204
        assert [(await client.request(how, "/sessions/a")).status_code for how in ("GET", "DELETE")] == [404, 404]


async def test_a_full_window_keeps_the_system_prompt_and_whole_turns(tmp_path: Path, valkey: ValkeyProcess) -> None:
    """Where no tokenizer is known, three bytes are taken for a token: 4096 hold about twelve turns of this size."""

    def script(body: Json) -> Turn:
        is_result = body["messages"][-1]["role"] == "tool"
        return Turn(texts=("a" * 400,)) if is_result else Turn(calls=(("weather", '{"city": "Oslo"}'),))

    async with session_scene(tmp_path, valkey, script) as scene:
        result = {"role": "tool", "tool_call_id": "call0", "content": "r" * 200}
        for number in range(40):
            sent = [system("Be kind.")] if number == 0 else []
            reply = await scene.ask(*sent, f"{number} " + "u" * 400, tools=[WEATHER])
            assert reply.status_code == 200, reply.text
            assert (await scene.ask(result, tools=[WEATHER])).status_code == 200
            messages = scene.member.bodies[-1]["messages"]
            assert messages[0]["content"] == "Be kind."
            roles = [message["role"] for message in messages[1:]]
            assert roles == (["user", "assistant", "tool", "assistant"] * len(roles))[: len(roles)]
        kept = await scene.read()
        assert 4 < kept["num_turns"] < 30
        assert kept["num_left"] == 4 * (40 - kept["num_turns"])
        assert kept["messages"][-4]["content"].startswith("39 ")


@both_forms
async def test_without_redis_sessions_are_refused_and_all_other_requests_go_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, is_streamed: bool
) -> None:
    own = ValkeyProcess(tmp_path_factory.mktemp("valkey"))
    own.start()
    try:
        async with session_scene(tmp_path, own, echo) as scene:
            assert (await scene.ask("one")).status_code == 200
            gate = Gate()
            scene.member.interrupt = gate.wait
            under_way = asyncio.create_task(scene.ask("two", stream=is_streamed))
            await eventually(lambda: gate.num_waiting == 1)
            own.stop()
            gate.opened.set()
            reply = await under_way
            assert b'"code":"session_unavailable"' in reply.content
            assert reply.status_code == (200 if is_streamed else 503)
            assert error_of(await scene.ask("three"))[:2] == (503, "session_unavailable")
            async with scene.client() as client:
                assert error_of(await client.get("/sessions/s"))[:2] == (503, "session_unavailable")
            assert (await scene.ask("without", session=None)).status_code == 200
            await eventually(lambda: len(durable_events(scene.gateway)) == 3)
            # Told that it failed, it costs nothing.
            costs = {event.error_code: event.cost_nanousd for event in durable_events(scene.gateway)}
            assert costs["session_unavailable"] == 0
            own.start()
            assert (await scene.ask_until_not(503, "four")).status_code == 200
            # It came back empty: the session is lost, and a new one.
            assert scene.seen() == [("user", "four")]
    finally:
        own.stop()


async def test_a_tenants_key_seals_what_is_kept_in_its_place(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        await scene.ask("plain", session="p")
        await scene.choose(is_encrypted=True)
        await scene.ask("secret")
        with redis.Redis.from_url(valkey.url) as keys:
            place = f"ctx:{{{scene.tenant_id}}}"
            body: Any = keys.hget(f"{place}:s", "body")
            assert body[0] == 1 and b"secret" not in body
            assert (await scene.ask("two")).status_code == 200
            assert scene.seen()[0] == ("user", "secret")
            # What was written before stays readable, and is sealed with its next turn.
            assert (await scene.ask("two", session="p")).status_code == 200
            assert keys.hget(f"{place}:p", "body")[0] == 1  # type: ignore[index]
            # Nobody with access to Redis moves one conversation into another.
            keys.copy(f"{place}:s", f"{place}:moved")
            assert error_of(await scene.ask("hi", session="moved"))[:2] == (409, "session_unreadable")
        async with scene.client() as client:
            assert (await client.delete("/sessions/moved")).status_code == 204
            assert (await client.post("/sessions/s/branch", json={"id": "b"})).status_code == 201
        await scene.choose(is_encrypted=False)
        assert (await scene.ask("three", session="b")).status_code == 200
        assert len(scene.seen()) == 5


async def test_a_session_that_was_refused_is_not_held(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene:
        assert (await scene.ask("hi", model="nobody")).status_code == 404
        assert (await scene.ask("hi", max_tokens=1_000_000)).status_code == 400
        assert (await scene.ask("hi")).status_code == 200
        assert len(scene.member.bodies) == 1
