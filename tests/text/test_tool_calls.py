import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import ToolCall
from text.tool_calls import ToolCallParser, parse_tool_calls

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 👍", "days": 2}}\n</tool_call>'
BROKEN = [
    "<tool_call>{not json}</tool_call>",
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "argum',
    "</tool_call> <tool_ca",
    "<tool_call></tool_call>",
]


def test_a_call_is_read() -> None:
    content, calls = parse_tool_calls(CALL)
    assert content is None
    assert [call.function.name for call in calls] == ["weather"]
    assert json.loads(calls[0].function.arguments) == {"city": "Köln 👍", "days": 2}
    assert calls[0].id.startswith("call_")


def test_text_before_calls_and_several_calls_are_kept() -> None:
    content, calls = parse_tool_calls(f"I will look.\n\n{CALL}\n{CALL}\n")
    assert content == "I will look."
    assert len(calls) == 2
    assert calls[0].id != calls[1].id


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_valid_call_stays_content(text: str) -> None:
    assert parse_tool_calls(text) == (text, [])
    assert parse_tool_calls(f"a {text} b") == (f"a {text} b", [])


def test_arguments_may_be_a_string_of_json() -> None:
    _, calls = parse_tool_calls('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>')
    assert json.loads(calls[0].function.arguments) == {"a": 1}


def test_plain_text_is_not_delayed() -> None:
    parser = ToolCallParser()
    assert parser.add("Hello") == ["Hello"]
    assert parser.add(" a < b") == [" a < b"]
    assert parser.add(" <") == []
    assert parser.add("tool") == []
    assert parser.add("box>") == [" <toolbox>"]


PARTS = st.sampled_from([CALL, *BROKEN, "text", " ", "\n", "<", "tool_call>", "{}", "日本"])


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(PARTS, max_size=6), size=st.integers(1, 7))
def test_a_stream_says_what_the_whole_says(parts: list[str], size: int) -> None:
    text = "".join(parts)
    parser = ToolCallParser()
    found: list[str | ToolCall] = []
    for start in range(0, len(text), size):
        found += parser.add(text[start : start + size])
    found += parser.flush()
    content, calls = parse_tool_calls(text)
    assert "".join(part for part in found if isinstance(part, str)) == (content or "")
    assert [part.function for part in found if isinstance(part, ToolCall)] == [call.function for call in calls]
    if not calls:
        assert (content or "") == text
