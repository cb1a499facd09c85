"""Checks tools and structured output by OpenAI's own client, over a pool of another engine: supported features work,
and others are refused by name."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import openai
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIMER: dict[str, Any] = {
    "name": "set_timer",
    "description": "Set a timer",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer"}},
        "required": ["minutes"],
        "additionalProperties": False,
    },
}
NAMED = {"type": "function", "function": {"name": "set_timer"}}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, TIMER)]
QUESTION = {"role": "user", "content": "What is the weather in Rome?"}
CALL = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
CALLED = [
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21, "sky": "clear"}'},
]
Found = tuple[str, bool, object]
"""(the check's name, whether it holds, what was seen)"""


class Person(BaseModel):
    age: Annotated[int, Field(ge=0, le=150)]
    is_member: bool


class Asking:
    def __init__(self, base_url: str, key: str, model: str) -> None:
        self.client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120)
        self._common: dict[str, Any] = {"model": model, "messages": [QUESTION], "max_tokens": 200, "temperature": 0}

    def ask(self, **fields: Any) -> ChatCompletion:
        answer: ChatCompletion = self.client.chat.completions.create(**(self._common | fields))
        return answer

    def parse(self, **fields: Any) -> Any:
        return self.client.chat.completions.parse(**(self._common | fields)).choices[0].message

    def stream(self, **fields: Any) -> Any:
        """The final choice of the client's stream helper."""
        with self.client.chat.completions.stream(**(self._common | fields)) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]

    def refusal(self, **fields: Any) -> tuple[int, object, object] | None:
        """Status, field and code of the refusal; None if the request was answered."""
        try:
            self.ask(**fields)
        except openai.APIStatusError as error:
            return error.status_code, error.param, error.code
        return None


def check_calls(asking: Asking, lacks: frozenset[str]) -> Iterator[Found]:
    """lacks: the features that the pool's members are configured to lack."""
    yield from _refused(asking, lacks)
    checks = _TOOL_CHECKS | _CHOICE_CHECKS if "tools" not in lacks else {}
    checks |= _SCHEMA_CHECKS if "json_schema" not in lacks else {}
    for name, check in checks.items():
        try:
            seen = check(asking)
        except (openai.OpenAIError, ValueError, LookupError, TypeError, AttributeError) as error:
            seen = f"{type(error).__name__}: {error}"
        yield name, seen is None, seen


def _refused(asking: Asking, lacks: frozenset[str]) -> Iterator[Found]:
    tagged = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
    cases: dict[str, dict[str, Any]] = {
        "response_format": {"response_format": tagged},
        "structured_outputs": {"extra_body": {"structured_outputs": {"choice": ["a", "b"]}}},
        "guided_regex": {"extra_body": {"guided_regex": "[a-z]"}},
        "functions": {"functions": [WEATHER]},
    }
    for field, fields in cases.items():
        seen = asking.refusal(**fields)
        yield f"{field} is refused by name", seen == (400, field, "unsupported"), seen
    lacked: dict[str, tuple[str, dict[str, Any]]] = {
        "tools": ("tools", {"tools": TOOLS}),
        "json_schema": ("response_format", {"response_format": _schema_format()}),
    }
    for feature, (field, fields) in lacked.items():
        if feature in lacks:
            seen = asking.refusal(**fields)
            yield f"{feature}, which it lacks, is refused by name", seen == (400, field, "unsupported"), seen


def _schema_format() -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}, "unit": {"enum": ["C", "F"]}},
        "required": ["age", "unit"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "reading", "strict": True, "schema": schema}}


def _called(choice: Any, name: str) -> object:
    """None if there is exactly one call, of this tool and with arguments of its schema; otherwise the message."""
    calls = choice.message.tool_calls or []
    [wanted] = [tool["function"]["parameters"] for tool in TOOLS if tool["function"]["name"] == name]
    if [call.function.name for call in calls] != [name]:
        return choice.message
    [(field, kind)] = [(field, each["type"]) for field, each in wanted["properties"].items()]
    arguments = json.loads(calls[0].function.arguments)
    is_right = list(arguments) == [field] and isinstance(arguments[field], {"string": str, "integer": int}[kind])
    return None if is_right and calls[0].id else choice.message


def _streamed_is_whole(asking: Asking, **fields: Any) -> object:
    whole, streamed = asking.ask(**fields).choices[0], asking.stream(**fields)
    # In unstreamed answers vLLM reformats the arguments, without the model's line breaks.
    seen = [
        (
            choice.finish_reason,
            [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls],
        )
        for choice in (whole, streamed)
    ]
    return None if seen[0] == seen[1] else seen


def _goes_on(asking: Asking) -> object:
    choice = asking.ask(tools=TOOLS, messages=CALLED).choices[0]
    return None if choice.message.content and "21" in choice.message.content else choice


def _not_called(asking: Asking) -> object:
    choice = asking.ask(tools=TOOLS, tool_choice="none").choices[0]
    return choice if choice.message.tool_calls else None


def _allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


def _only_allowed(asking: Asking) -> object:
    calls = asking.ask(tools=TOOLS, tool_choice=_allowed("auto")).choices[0].message.tool_calls or []
    return calls if any(call.function.name != "set_timer" for call in calls) else None


_TOOL_CHECKS: dict[str, Callable[[Asking], object]] = {
    "a tool is called by the model's own choice": lambda it: _called(it.ask(tools=TOOLS).choices[0], "get_weather"),
    "a streamed call is the whole answer's": lambda it: _streamed_is_whole(it, tools=TOOLS),
    "tool_choice none calls nothing": _not_called,
    "one call where parallel ones are not wanted": lambda it: _called(
        it.ask(tools=TOOLS, parallel_tool_calls=False).choices[0], "get_weather"
    ),
    "results of tools are read": _goes_on,
}
_CHOICE_CHECKS: dict[str, Callable[[Asking], object]] = {
    "tool_choice required": lambda it: _called(it.ask(tools=TOOLS, tool_choice="required").choices[0], "get_weather"),
    "tool_choice required, streamed": lambda it: _streamed_is_whole(it, tools=TOOLS, tool_choice="required"),
    "a named tool": lambda it: _called(it.ask(tools=TOOLS, tool_choice=NAMED).choices[0], "set_timer"),
    "a named tool, streamed": lambda it: _streamed_is_whole(it, tools=TOOLS, tool_choice=NAMED),
    "allowed_tools required": lambda it: _called(
        it.ask(tools=TOOLS, tool_choice=_allowed("required")).choices[0], "set_timer"
    ),
    "allowed_tools auto": _only_allowed,
    "pydantic tools by the stream helper": lambda it: _is_person(
        it.stream(tools=[openai.pydantic_function_tool(Person)], tool_choice="required")
        .message.tool_calls[0]
        .function.parsed_arguments
    ),
}
_SCHEMA_CHECKS: dict[str, Callable[[Asking], object]] = {
    "json_schema is held": lambda it: _is_reading(
        it.ask(response_format=_schema_format()).choices[0].message.content or ""
    ),
    "parse()": lambda it: _is_person(it.parse(response_format=Person).parsed),
    "parse() by the stream helper": lambda it: _is_person(it.stream(response_format=Person).message.parsed),
}


def _is_person(found: object) -> object:
    return None if isinstance(found, Person) else found


def _is_reading(text: str) -> object:
    found = json.loads(text)
    is_right = found.keys() == {"age", "unit"} and 0 <= found["age"] <= 150 and found["unit"] in ("C", "F")
    return None if is_right else text
