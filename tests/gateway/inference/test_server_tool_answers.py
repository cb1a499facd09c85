"""What is asked of members in each round, and what the client's stream is made of, whatever chunks come."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.tools.models import ServerTool
from gateway.http.errors import UpstreamFailed
from gateway.inference.exchange import Exchange
from gateway.inference.server_tools.answers import StreamedAnswer
from gateway.inference.server_tools.request import Rounds
from gateway.inference.server_tools.said import CallParts, Said, said_in
from gateway.inference.server_tools.usage import UsageSum
from protocol.requests import PlatformChatRequest

Json = dict[str, Any]
TOOL = ServerTool(id=uuid4(), name="weather", description="d", parameters={"type": "object"})
MINE: Json = {
    "type": "function",
    "function": {"name": "mine", "description": None, "parameters": {"type": "object", "x": 1}},
}
NAMED: Json = {"type": "function", "function": {"name": "weather"}}


def rounds(**fields: Any) -> Rounds:
    body = {"model": "auto", "messages": [{"role": "user", "content": "é"}], "server_tools": ["weather"], **fields}
    encoded = msgspec.json.encode(body)
    return Rounds(encoded, msgspec.json.decode(encoded, type=PlatformChatRequest))


def test_a_round_is_asked_as_the_client_wrote_it_and_a_forced_call_is_forced_once() -> None:
    asked = rounds(tools=[MINE], tool_choice=NAMED, max_completion_tokens=20, min_tokens=3, temperature=0.5)
    first = json.loads(asked.body([TOOL])[0])
    assert first["tools"][0] == MINE and [tool["function"]["name"] for tool in first["tools"]] == ["mine", "weather"]
    assert (first["tool_choice"], first["max_completion_tokens"], first["min_tokens"]) == (NAMED, 20, 3)
    asked.go_on({"role": "assistant", "content": "x"}, [], num_tokens=7, model="small")
    second, request = asked.body([])
    read = json.loads(second)
    assert read["tools"] == [MINE] and read["tool_choice"] == "auto" and read["model"] == "small"
    assert (read["max_tokens"], read["temperature"]) == (13, 0.5)
    assert not {"max_completion_tokens", "min_tokens", "server_tools"} & read.keys()
    assert [message["role"] for message in read["messages"]] == ["user", "assistant"] and request.max_tokens == 13


def test_a_round_without_tools_names_none() -> None:
    asked = rounds(tool_choice="auto", parallel_tool_calls=False)
    asked.go_on({"role": "assistant", "content": "x"}, [], num_tokens=7, model=None)
    read = json.loads(asked.body([])[0])
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & read.keys() and read["model"] == "auto"


calls = st.lists(st.tuples(st.text(min_size=1), st.text(max_size=20)), min_size=1, max_size=4)


@given(calls, st.data())
def test_calls_are_put_together_from_deltas_cut_anywhere(made: Sequence[tuple[str, str]], data: st.DataObject) -> None:
    parts = CallParts()
    for i, (name, _) in enumerate(made):
        parts.add([{"index": i, "id": f"id{i}", "type": "function", "function": {"name": name, "arguments": ""}}])
    left = {i: arguments for i, (_, arguments) in enumerate(made)}
    while any(left.values()):
        i = data.draw(st.sampled_from([i for i, rest in left.items() if rest]))
        at = data.draw(st.integers(1, len(left[i])))
        parts.add([{"index": i, "function": {"arguments": left[i][:at]}}])
        left[i] = left[i][at:]
    assert [(call.id, call.name, call.arguments) for call in parts.calls()] == [
        (f"id{i}", name, arguments) for i, (name, arguments) in enumerate(made)
    ]


@pytest.mark.parametrize(
    "body",
    [{}, {"choices": 5}, {"choices": [5]}, {"choices": [{"message": 5}]}, {"choices": [{"message": {"content": 5}}]}],
)
def test_what_is_no_answer_says_nothing(body: Json) -> None:
    assert said_in(body) == Said(None, (), None)


def test_calls_without_ids_or_with_one_twice_get_their_own() -> None:
    function = {"name": "weather", "arguments": "{}"}
    odd = [{"id": "a", "function": function}, {"id": "a", "function": function}, {"function": 5}, 5]
    said = said_in({"choices": [{"message": {"tool_calls": odd}, "finish_reason": "tool_calls"}]})
    assert len({call.id for call in said.calls}) == 3
    assert [call.name for call in said.wants(without=[""])] == ["weather", "weather"]


class Client:
    """Takes what the client would get."""

    def __init__(self) -> None:
        self.sent = b""
        self.exchange = Exchange({"path": "/", "headers": ()}, self._no_body, self._take)
        self.answer = StreamedAnswer(self.exchange, UsageSum())

    async def feed(self, *chunks: Json) -> None:
        body = b"".join([b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks])
        await self.answer.take({"type": "http.response.body", "body": body, "more_body": True})

    def deltas(self) -> list[Json]:
        lines = [line[6:] for line in self.sent.split(b"\n") if line.startswith(b"data: {")]
        return [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]

    async def _take(self, message: Any) -> None:
        self.sent += message.get("body", b"")

    async def _no_body(self) -> Any:
        raise AssertionError


def chunk(delta: Any, reason: str | None = None, **fields: Any) -> Json:
    return {"id": "1", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **fields}


async def test_a_last_chunk_that_says_everything_loses_nothing() -> None:
    client = Client()
    call = {"index": 0, "id": "a", "function": {"name": "mine", "arguments": "{}"}}
    await client.feed(chunk({"role": "assistant", "content": "Hi", "tool_calls": [call]}, "tool_calls"))
    assert client.answer.said().finish_reason == "tool_calls" and client.answer.said().text == "Hi"
    await client.answer.finish(own=["mine"], num_rounds=1)
    spoken, called, last = client.deltas()
    assert spoken == {"content": "Hi", "role": "assistant"} and last == {}
    assert called["tool_calls"][0]["function"] == {"name": "mine", "arguments": "{}"}


async def test_comments_and_other_fields_pass_and_the_role_comes_once() -> None:
    client = Client()
    waiting = {"type": "http.response.body", "body": b": waiting position=2\n\n", "more_body": True}
    await client.answer.take(waiting)
    for _ in range(2):
        client.answer.begin()
        await client.feed(chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": "hm"}, x=1))
    assert client.sent.startswith(b": waiting position=2\n\n")
    assert client.deltas() == [
        {"content": "", "role": "assistant"},
        {"reasoning_content": "hm"},
        {"reasoning_content": "hm"},
    ]
    assert b'"x":1' in client.sent


async def test_usage_within_a_stream_counts_the_rounds_before() -> None:
    client = Client()
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, "other": 5}
    await client.feed(chunk({"content": "a"}, usage=usage))
    shown = json.loads(client.sent.partition(b"data: ")[2])["usage"]
    assert shown == {**usage, "prompt_tokens_details": {"cached_tokens": 0}}


@pytest.mark.parametrize(
    "choices", [[5], ["x"], {"0": 1}, [{"delta": 5}], [{"delta": "text"}], [{"delta": {}, "finish_reason": 5}]]
)
async def test_chunks_of_another_shape_fail_in_one_way_or_are_ignored(choices: Any) -> None:
    client = Client()
    try:
        await client.feed({"id": "1", "created": 1, "choices": choices})
        client.answer.said()
    except UpstreamFailed:
        pass
    with pytest.raises(UpstreamFailed):
        await client.answer.take({"type": "http.response.body", "body": b"data: [1]\n\n", "more_body": True})


async def test_while_tools_run_a_comment_tells_which() -> None:
    client = Client()
    await client.answer.beat(["find_order", "weather"])
    assert client.exchange.is_started and client.sent == b": tools find_order,weather\n\n"
