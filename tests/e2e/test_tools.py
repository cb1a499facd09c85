"""Clients that offer tools, through the whole platform, with the demo models."""

import json
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.support.platform import Platform

QUESTION = "What is the weather in Paris?"
ASK: Any = [{"role": "user", "content": QUESTION}]


class GetWeather(BaseModel):
    """Get the weather in a city"""

    city: str = Field(max_length=30)


class Temperature(BaseModel):
    city: str = Field(max_length=30)
    degrees: int = Field(ge=-50, le=60)


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return json.dumps({"temperature": len(city) + 10, "sky": "sunny"})


def test_the_official_client_parses_calls_streamed_and_not(client: openai.OpenAI) -> None:
    for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
        asked: Any = {"model": "large", "messages": ASK, "tools": [TOOL], "tool_choice": choice, "temperature": 0}
        whole = client.chat.completions.parse(**asked)
        [call] = whole.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == GetWeather(city="Paris")
        assert whole.choices[0].finish_reason == "tool_calls"
        kinds = set()
        with client.chat.completions.stream(**asked) as stream:
            for event in stream:
                kinds.add(event.type)
            streamed = stream.get_final_completion()
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
        [again] = streamed.choices[0].message.tool_calls or []
        assert again.function == call.function


def test_an_agent_loop_of_the_official_client_ends_with_an_answer(client: openai.OpenAI) -> None:
    messages: list[Any] = list(ASK)
    for _ in range(3):
        message = (
            client.chat.completions.create(model="large", messages=messages, tools=[TOOL], temperature=0)
            .choices[0]
            .message
        )
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            assert call.type == "function"
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert messages[-1].content == "It is sunny in Paris with 15 degrees."


def test_langchain_calls_tools_and_gives_objects_by_function_calling(platform: Platform) -> None:
    model = ChatOpenAI(
        model="large",
        base_url=platform.base_url,
        api_key=SecretStr(platform.enterprise_key),
        temperature=0,
        max_retries=0,
    )
    offered = tool(get_weather)
    for options in ({}, {"tool_choice": "any"}, {"strict": True}, {"parallel_tool_calls": False}):
        bound = model.bind_tools([offered], **options)
        messages: list[Any] = [HumanMessage(QUESTION)]
        asked = bound.invoke(messages)
        [call] = asked.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
        result = offered.invoke(call)
        assert isinstance(result, ToolMessage)
        answer = model.bind_tools([offered]).invoke([*messages, asked, result])
        assert answer.content == "It is sunny in Paris with 15 degrees."
    shaped = model.with_structured_output(Temperature, method="function_calling")
    assert isinstance(shaped.invoke("It is 20 degrees in Paris."), Temperature)
    assert list(shaped.stream("It is 20 degrees in Paris."))[-1] == shaped.invoke("It is 20 degrees in Paris.")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "int"}}}},
                    }
                ]
            },
            "tools[0].function.parameters.properties.a.type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"title": "x" * 10**6}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"messages": [*ASK, {"role": "tool", "tool_call_id": "1", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {
                "messages": [
                    *ASK,
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "no json"}}
                        ],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ],
    ids=str,
)
def test_bad_tools_are_refused_by_their_place(platform: Platform, fields: dict[str, Any], param: str) -> None:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    body = {"model": "large", "messages": ASK} | fields
    reply = httpx.post(f"{platform.base_url}/chat/completions", json=body, headers=headers, timeout=30)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
