"""Calls between <tool_call> marks, and what only looks like one."""

import json

import pytest

from tests.support.spelled_calls import parse_all
from text.tool_calls.formats import make_parser
from text.tool_calls.parts import join_calls, join_text

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 👍", "days": 2}}\n</tool_call>'
BROKEN = [
    "<tool_call>{not json}</tool_call>",
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "two words", "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "no json"}</tool_call>',
    '<tool_call>{"name": "f", "argum',
    "</tool_call> <tool_ca",
    "<tool_call></tool_call>",
]


def test_a_call_is_read() -> None:
    parts = parse_all("hermes", [], CALL)
    assert join_text(parts) == ""
    [call] = join_calls(parts)
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Köln 👍", "days": 2}
    assert call.id.startswith("call_")


def test_text_before_calls_and_several_calls_are_kept() -> None:
    parts = parse_all("hermes", [], f"I will look.\n\n{CALL}\n{CALL}\n")
    assert join_text(parts) == "I will look."
    one, other = join_calls(parts)
    assert one.id != other.id


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_valid_call_stays_content(text: str) -> None:
    for each in (text, f"a {text} b"):
        parts = parse_all("hermes", [], each)
        assert (join_text(parts), join_calls(parts)) == (each, [])


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"id": 3, "name": "f", "arguments": {"a": 1}, "type": "function"}',
        '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}',
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "parameters": {"a": 1}}',
    ],
)
def test_the_spellings_that_models_have_for_a_call_are_read(body: str) -> None:
    parts = parse_all("hermes", [], f"<tool_call>{body}</tool_call>")
    [call] = join_calls(parts)
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"a": 1})
    assert join_text(parts) == ""


def test_a_call_without_arguments_has_an_empty_object() -> None:
    [call] = join_calls(parse_all("hermes", [], '<tool_call>{"name": "f"}</tool_call>'))
    assert call.function.arguments == "{}"


def test_the_closing_mark_inside_an_argument_closes_nothing() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>'
    [call] = join_calls(parse_all("hermes", [], text))
    assert json.loads(call.function.arguments) == {"a": "</tool_call>"}


def test_plain_text_is_not_delayed() -> None:
    parser = make_parser("hermes", [])
    assert parser.add("Hello") == ["Hello"]
    assert parser.add(" a < b") == [" a < b"]
    assert parser.add(" <") == []
    assert parser.add("tool") == []
    assert parser.add("box>") == [" <toolbox>"]
