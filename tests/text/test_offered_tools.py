"""The model is shown the tools that it may call, and no others."""

from typing import Any

import msgspec
import pytest

from protocol.legacy import modern
from protocol.requests import ChatCompletionRequest
from tests.support.templates import HERMES
from text.prompts import render_messages

WEATHER = {"type": "function", "function": {"name": "weather"}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ALLOWED = {"mode": "auto", "tools": [WEATHER]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [WEATHER, CLOCK]}, ["weather", "clock"]),
        ({"tools": [WEATHER, CLOCK], "tool_choice": "required"}, ["weather", "clock"]),
        ({"tools": [WEATHER, CLOCK], "tool_choice": "none"}, []),
        ({"tools": [WEATHER, CLOCK], "tool_choice": CLOCK}, ["clock"]),
        ({"tools": [WEATHER, CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}, ["weather"]),
        ({"functions": [{"name": "clock"}]}, ["clock"]),
        ({"functions": [{"name": "clock"}], "function_call": "none"}, []),
    ],
    ids=str,
)
def test_only_what_may_be_called_is_shown(fields: dict[str, Any], expected: list[str]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields
    request = modern(msgspec.convert(body, ChatCompletionRequest))
    shown = render_messages(HERMES.bundle(), request)
    assert [name for name in ("weather", "clock") if name in shown] == expected


def test_thinking_less_is_told_to_the_template() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "none"}
    template = "{{ reasoning_effort }} {{ enable_thinking }} {{ messages[0].content }}"
    bundle = type(HERMES)(name="effort", template=template, special=()).bundle()
    assert render_messages(bundle, msgspec.convert(body, ChatCompletionRequest)) == "none False x"
