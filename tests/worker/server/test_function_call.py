"""OpenAI's older form of tools."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.support.running_worker import running_worker
from tests.support.scripted import make_scripted_checkpoint
from tests.worker.server.test_tool_calls import ASK, SCRIPT, TOOL

FUNCTION = TOOL["function"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with (
        running_worker(folder) as worker,
        openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_a_call_of_a_function_comes_in_the_older_form(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, functions=[FUNCTION]).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.tool_calls is None
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "weather"
    assert json.loads(choice.message.function_call.arguments) == {"city": "Köln"}


def test_streamed_it_is_the_same(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK, functions=[FUNCTION], function_call="auto", stream=True))
    deltas = [delta for chunk in chunks if (delta := chunk.choices[0].delta.function_call)]
    assert [delta.name for delta in deltas] == ["weather"] + [None] * (len(deltas) - 1)
    assert json.loads("".join(delta.arguments or "" for delta in deltas)) == {"city": "Köln"}
    assert chunks[-1].choices[0].finish_reason == "function_call"


def test_its_messages_make_the_prompt_that_the_newer_ones_make(client: openai.OpenAI) -> None:
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    old = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    new = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    counts = [
        client.chat.completions.create(**ASK | {"messages": messages, "max_tokens": 1}, **fields).usage.prompt_tokens
        for messages, fields in ((old, {"functions": [FUNCTION]}), (new, {"tools": [TOOL]}))
    ]
    assert counts[0] == counts[1]
