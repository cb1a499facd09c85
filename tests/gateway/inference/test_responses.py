"""The Responses API by the official client: created, streamed, parsed, gone on from, with tools; what is refused."""

from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from pydantic import BaseModel

from tests.support.gateways import durable_events, eventually
from tests.support.scripted_members import Json, Turn
from tests.support.server_tool_scenes import Engine
from tests.support.session_scenes import SessionScene, session_scene, user
from tests.support.valkey import ValkeyProcess

both_engines = pytest.mark.parametrize("engine", ["openai", "tiergate"])
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


def echo(body: Json) -> Turn:
    return Turn(texts=("re: ", body["messages"][-1]["content"]))


def client_of(scene: SessionScene, key: str | None = None, *, max_retries: int = 8) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=scene.gateway.base_url, api_key=key or scene.key, max_retries=max_retries)


@both_engines
async def test_a_response_is_created_kept_and_gone_on_from(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine
) -> None:
    async with session_scene(tmp_path, valkey, echo, engine=engine) as scene, client_of(scene) as client:
        first = await client.responses.create(
            model="small", input="I am Ada.", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50
        )
        assert (first.output_text, first.status, first.model) == ("re: I am Ada.", "completed", "m")
        assert first.usage is not None and (first.usage.input_tokens, first.usage.output_tokens) == (11, 5)
        assert (first.metadata, first.instructions) == ({"a": "b"}, "Be brief.")
        assert scene.member.bodies[0]["max_tokens"] == 50
        second = await client.responses.create(
            model="small", input=[{"role": "user", "content": "Who?"}], previous_response_id=first.id
        )
        # Instructions are of one response alone, as at OpenAI.
        assert scene.seen() == [("user", "I am Ada."), ("assistant", "re: I am Ada."), ("user", "Who?")]
        assert (await client.responses.retrieve(second.id)).output == second.output
        items = await client.responses.input_items.list(first.id)
        assert [item.content[0].text for item in items.data] == ["I am Ada."]  # type: ignore[union-attr]
        await eventually(lambda: len(durable_events(scene.gateway)) == 2)
        assert {(event.endpoint, event.status) for event in durable_events(scene.gateway)} == {("/v1/responses", "ok")}
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="small", input="x", previous_response_id=first.id)
        unkept = await client.responses.create(model="small", input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unkept.id)


@both_engines
async def test_a_stream_has_openais_events_in_their_order(
    tmp_path: Path, valkey: ValkeyProcess, engine: Engine
) -> None:
    script = [Turn(texts=("It ", "is."), calls=(("weather", '{"city": "Oslo"}'),)), Turn(texts=("Sunny.",))]
    async with session_scene(tmp_path, valkey, script, engine=engine) as scene, client_of(scene) as client:
        async with client.responses.stream(model="small", input="Weather?", tools=[WEATHER]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        kinds = [event.type.removeprefix("response.") for event in events]
        assert [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind] == [
            *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
            *("output_text.done", "content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
            *("output_item.done", "completed"),
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (final.output_text, final.output[1].type) == ("It is.", "function_call")
        assert final.usage is not None and final.usage.output_tokens == 5
        call: Any = final.output[1]
        assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        answer = await client.responses.create(
            model="small", input=[output], previous_response_id=final.id, tools=[WEATHER]
        )
        assert answer.output_text == "Sunny."
        asked = scene.member.bodies[1]["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
        assert asked[2]["tool_call_id"] == asked[1]["tool_calls"][0]["id"] == call.call_id
        # The same conversation by its items, without what is kept.
        items: Any = [user("Weather?"), *(item.model_dump(exclude_none=True) for item in final.output), output]
        scene.member.script = [*script, Turn(texts=("Sunny.",))]
        await client.responses.create(model="small", input=items, tools=[WEATHER], store=False)
        assert scene.member.bodies[2]["messages"] == asked


async def test_structured_output_is_parsed(tmp_path: Path, valkey: ValkeyProcess) -> None:
    class City(BaseModel):
        name: str

    async with (
        session_scene(tmp_path, valkey, [Turn(texts=('{"name": "Oslo"}',))]) as scene,
        client_of(scene) as client,
    ):
        parsed = await client.responses.parse(model="small", input="city", text_format=City)
        assert parsed.output_parsed == City(name="Oslo")
        sent = scene.member.bodies[0]["response_format"]
        assert (sent["type"], sent["json_schema"]["name"]) == ("json_schema", "City")


async def test_an_answer_that_was_cut_is_incomplete(tmp_path: Path, valkey: ValkeyProcess) -> None:
    cut = Turn(texts=("half",), finish_reason="length")
    async with session_scene(tmp_path, valkey, [cut, cut]) as scene, client_of(scene) as client:
        whole = await client.responses.create(model="small", input="x")
        events = [event async for event in await client.responses.create(model="small", input="x", stream=True)]
        assert events[-1].type == "response.incomplete"
        for response in (whole, events[-1].response):
            assert response.status == "incomplete" and response.incomplete_details is not None
            assert response.incomplete_details.reason == "max_output_tokens"


REFUSED: list[tuple[Json, str]] = [
    ({"background": True}, "background"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"conversation": "c"}, "conversation"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, "input"),
    ({"input": []}, "input"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"max_tokens": 5}, "max_tokens"),
]


async def test_what_is_not_served_is_refused_by_name(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, scene.client() as client:
        for fields, param in REFUSED:
            reply = await client.post("/responses", json={"model": "small", "input": "x"} | fields)
            assert reply.status_code == 400, (fields, reply.text)
            assert str(reply.json()["error"]["param"]).startswith(param), (fields, reply.text)
        assert scene.member.bodies == []


async def test_what_a_query_asks_beside_is_refused_by_name(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, client_of(scene) as client, scene.client() as raw:
        made = await client.responses.create(model="small", input="x")
        assert (await client.responses.retrieve(made.id, stream=False)).id == made.id
        for path, query, param in (
            (f"/responses/{made.id}", {"include[]": "message.output_text.logprobs"}, "include"),
            (f"/responses/{made.id}", {"stream": "true"}, "stream"),
            (f"/responses/{made.id}", {"starting_after": "1"}, "starting_after"),
            (f"/responses/{made.id}/input_items", {"include": "x"}, "include"),
            ("/files", {"mood": "good"}, "mood"),
            ("/batches", {"order": "asc"}, "order"),
        ):
            reply = await raw.get(path, params=query)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_some_of_the_tools_may_be_allowed(tmp_path: Path, valkey: ValkeyProcess) -> None:
    call = Turn(calls=(("weather", "{}"),))
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    async with session_scene(tmp_path, valkey, [call]) as scene, client_of(scene) as client:
        other = WEATHER | {"name": "other"}
        made = await client.responses.create(model="small", input="x", tools=[WEATHER, other], tool_choice=choice)
        assert made.tool_choice.model_dump() == choice  # type: ignore[union-attr]
        # For a server that may not know the form.
        assert scene.member.bodies[0]["tool_choice"] == "required"
        assert [tool["function"]["name"] for tool in scene.member.bodies[0]["tools"]] == ["weather"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_broke_off_is_an_error_not_kept_and_not_billed(
    tmp_path: Path, valkey: ValkeyProcess, is_streamed: bool
) -> None:
    broken = Turn(texts=("half",), finish_reason="error")
    async with session_scene(tmp_path, valkey, lambda _: broken) as scene, client_of(scene, max_retries=1) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            answer: Any = await client.responses.create(model="small", input="x", stream=is_streamed)
            assert [event async for event in answer] == []
        await eventually(lambda: durable_events(scene.gateway))
        assert {(event.status, event.cost_nanousd) for event in durable_events(scene.gateway)} == {("error", 0)}
        with redis.Redis.from_url(valkey.url) as keys:
            assert keys.keys(f"resp*{scene.tenant_id}*") == []


async def test_the_oldest_turns_leave_where_the_client_says_so(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, client_of(scene) as client:
        first: Any = await client.responses.create(model="small", input="a" * 6000)
        for _ in range(3):
            first = await client.responses.create(
                model="small", input="a" * 6000, previous_response_id=first.id, truncation="auto"
            )
        assert len(scene.member.bodies[-1]["messages"]) < 7


async def test_another_tenants_response_is_not_there(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, echo) as scene, client_of(scene) as client:
        mine = await client.responses.create(model="small", input="secret")
        async with client_of(scene, await scene.gateway.make_key()) as other:
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(mine.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model="small", input="x", previous_response_id=mine.id)
        assert len(scene.member.bodies) == 1
