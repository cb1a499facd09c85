"""Tool calls that a model writes as text arrive as tool calls, in streams too."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.support.running_worker import running_worker
from tests.support.scripted import make_scripted_checkpoint

SCRIPT = [
    *("I look.", "\n\n<tool_", 'call>\n{"name": "wea', 'ther", "argu'),
    *('ments": {"ci', 'ty": "Kö', 'ln"}', "}", "</tool_call>"),
]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Weather?"}], "temperature": 0}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with (
        running_worker(folder) as worker,
        openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_a_call_is_returned_with_its_reason(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Köln"}


def test_a_streamed_call_is_the_same(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK, tools=[TOOL], stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert {delta.index for delta in deltas} == {0}
    assert [delta.id is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    functions = [delta.function for delta in deltas if delta.function]
    assert [function.name for function in functions] == ["weather"] + [None] * (len(deltas) - 1)
    assert functions[0].arguments == ""
    assert "".join(function.arguments or "" for function in functions) == '{"city": "Köln"}'
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I look."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_without_tools_the_text_stays_text(client: openai.OpenAI, fields: dict[str, object]) -> None:
    choice = client.chat.completions.create(**ASK, **fields).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == "".join(SCRIPT)


def test_a_call_cut_by_the_limit_stays_text(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, tools=[TOOL], max_tokens=4).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content == "".join(SCRIPT[:4])


@pytest.mark.parametrize(
    ("fields", "expected", "reason"),
    [
        ({"max_tokens": 5}, '{"ci', "length"),
        ({"stop": "Kö"}, '{"city": "', "stop"),
        ({"stop": "ln"}, '{"city": "Kö', "stop"),
    ],
    ids=str,
)
def test_a_call_cut_in_its_arguments_is_told_as_far_as_it_came_and_is_not_the_reason(
    client: openai.OpenAI, fields: dict[str, object], expected: str, reason: str
) -> None:
    choice = client.chat.completions.create(**ASK, tools=[TOOL], **fields).choices[0]
    assert choice.finish_reason == reason
    assert choice.message.tool_calls is not None
    assert [call.function.arguments for call in choice.message.tool_calls] == [expected]
