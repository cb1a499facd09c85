"""Sessions together with what else a request may ask for: server tools, and idempotency keys."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.inference.test_sessions import Gate, echo
from tests.support.gateways import durable_events, eventually
from tests.support.scripted_members import Json, Turn
from tests.support.server_tool_scenes import BODY, Engine, Scene, scene
from tests.support.session_scenes import session_scene, user
from tests.support.valkey import ValkeyProcess

CALL = Turn(texts=("Let me look. ",), calls=(("weather", '{"city": "Paris"}'),))
ANSWERS = (CALL, Turn(texts=("It is sunny.",)), Turn(texts=("Paris.",)))
IN_SESSION = {"X-Session-Id": "s"}
both_forms = pytest.mark.parametrize("is_streamed", [False, True])


async def contents(it: Scene) -> list[str]:
    async with it.client() as client:
        return [message["content"] for message in (await client.get("/sessions/s")).json()["messages"]]


@both_forms
@pytest.mark.parametrize("engine", ["openai", "tiergate"])
async def test_the_final_answer_of_server_tools_is_kept_without_its_rounds(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine, is_streamed: bool
) -> None:
    async with scene(tmp_path, valkey, ANSWERS, engine=engine, tool={"answers": lambda _: {"sky": "blue"}}) as it:
        async with it.client() as client:
            first = await client.post("/chat/completions", json=BODY | {"stream": is_streamed}, headers=IN_SESSION)
            assert first.status_code == 200 and len(it.member.bodies) == 2, first.text
            plain = {"model": "small", "messages": [user("Which city was it?")], "stream": is_streamed}
            second = await client.post("/chat/completions", json=plain, headers=IN_SESSION)
        assert second.headers["x-tiergate-session-messages"] == "2"
        asked = it.member.bodies[2]["messages"]
        assert [each["role"] for each in asked] == ["user", "assistant", "user"]
        said = "Let me look. It is sunny." if is_streamed else "It is sunny."
        assert asked[1]["content"] == said and "tool_calls" not in asked[1]
        assert await contents(it) == ["Weather in Paris?", said, "Which city was it?", "Paris."]
        # The second round went on from the first, not from the session twice.
        assert [each["role"] for each in it.member.bodies[1]["messages"]] == ["user", "assistant", "tool"]
        assert {event.session_id for event in durable_events(it.gateway)} == {"s"}


@both_forms
async def test_server_tools_that_end_in_a_failure_leave_no_half(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    script = [CALL, Turn(texts=("It",), finish_reason="error"), Turn(texts=("Hi.",))]
    async with scene(tmp_path, valkey, script, tool={"answers": lambda _: {}}) as it, it.client() as client:
        await client.post("/chat/completions", json=BODY | {"stream": is_streamed}, headers=IN_SESSION)
        hello = {"model": "small", "messages": [user("Hello")]}
        assert (await client.post("/chat/completions", json=hello, headers=IN_SESSION)).status_code == 200
        assert await contents(it) == ["Hello", "Hi."]


@both_forms
async def test_a_turn_that_is_sent_twice_under_one_key_is_one_turn(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    async with session_scene(tmp_path, valkey, echo) as it, it.client() as client:

        async def ask(session: str = "s") -> Any:
            body = {"model": "small", "messages": [user("one")], "stream": is_streamed}
            headers = {"X-Session-Id": session, "Idempotency-Key": "k"}
            return await client.post("/chat/completions", json=body, headers=headers)

        first, again = await ask(), await ask()
        assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-tiergate-session-messages"] == "0"
        assert (await ask("other")).json()["error"]["code"] == "idempotency_key_reused"
        assert (await it.read())["num_turns"] == 1 and len(it.member.bodies) == 1
        assert len(durable_events(it.gateway)) == 1


async def test_a_turn_whose_client_left_goes_on_under_its_key_and_is_kept(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with session_scene(tmp_path, valkey, echo) as it, it.client() as client:
        gate = Gate()
        it.member.interrupt = gate.wait
        body: Json = {"model": "small", "messages": [user("one")]}
        headers = IN_SESSION | {"Idempotency-Key": "k"}
        leaving = asyncio.create_task(client.post("/chat/completions", json=body, headers=headers))
        await eventually(lambda: gate.num_waiting == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        # The session is the first one's, by its key or without.
        assert (await it.ask("two")).json()["error"]["code"] == "session_busy"
        gate.opened.set()
        await eventually(lambda: durable_events(it.gateway))
        again = await client.post("/chat/completions", json=body, headers=headers)
        while again.status_code == 409:
            again = await client.post("/chat/completions", json=body, headers=headers)
        assert again.json()["choices"][0]["message"]["content"] == "re: one"
        assert (await it.read())["num_turns"] == 1 and len(it.member.bodies) == 1


@both_forms
async def test_a_response_that_is_sent_twice_under_one_key_is_one_response(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    async with session_scene(tmp_path, valkey, echo) as it, it.client() as client:
        body = {"model": "small", "input": "one", "stream": is_streamed}
        first, again = [await client.post("/responses", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert (first.status_code, again.status_code) == (200, 200), again.text
        assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
        assert len(it.member.bodies) == 1 and len(durable_events(it.gateway)) == 1
