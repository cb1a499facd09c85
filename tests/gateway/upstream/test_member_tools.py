"""What other engines get of a request with tools."""

import json
from typing import Any

import msgspec

from gateway.inference.own_fields import own_field_of
from gateway.upstream.member_body import member_body
from protocol.requests import ChatCompletionRequest
from router.fleet import Member

WEATHER = {"type": "function", "function": {"name": "weather", "strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [WEATHER, CLOCK]}


def sent_to(engine: str, **fields: Any) -> dict[str, Any]:
    sent = json.dumps(BODY | fields).encode()
    request = msgspec.json.decode(sent, type=ChatCompletionRequest)
    member = Member(worker_id="1", url="http://one", engine=engine, model_name="m", load=None, is_healthy=True)
    body = member_body(sent, request, member, model="m", max_tokens=5, priority=1, cache_salt="")
    found: dict[str, Any] = json.loads(body)
    return found


def test_a_choice_among_some_tools_is_one_among_fewer() -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}
    asked = sent_to("openai", tool_choice=choice, parallel_tool_calls=False, reasoning_effort="low")
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["clock"]
    assert asked["tool_choice"] == "required"
    assert (asked["parallel_tool_calls"], asked["reasoning_effort"]) == (False, "low")
    assert sent_to("tiergate", tool_choice=choice)["tool_choice"] == choice


def test_strict_tools_pass_as_they_are() -> None:
    assert sent_to("openai")["tools"] == [WEATHER, CLOCK]


def test_the_older_form_is_for_our_workers_alone() -> None:
    body = {"model": "m", "messages": BODY["messages"], "functions": [{"name": "f"}]}
    assert own_field_of(msgspec.convert(body, ChatCompletionRequest)) == "functions"
