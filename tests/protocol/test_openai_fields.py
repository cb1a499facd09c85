"""Each entry of the table holds for a real body."""

from typing import Any

import msgspec
import pytest

from protocol.checks import check_request, decode_body
from protocol.errors import ProtocolError
from protocol.openai_fields import COMPLETIONS
from protocol.requests import ChatCompletionRequest, CompletionRequest

TEXT = {"type": "text", "text": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [CALL | {"index": 0}]}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [TEXT, *parts]}]}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"} | fields]}


NO_EFFECT: dict[str, dict[str, Any]] = {
    "metadata": {"metadata": {"team": "a"}},
    "store": {"store": True},
    "safety_identifier": {"safety_identifier": "u"},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "prediction": {"prediction": {"type": "content", "content": "Yes"}},
    "messages.refusal": assistant(refusal="No"),
    "messages.annotations": assistant(annotations=[]),
    "messages.tool_calls.index": {"messages": [*CALLED, {"role": "tool", "content": "1", "tool_call_id": "c"}]},
    "response_format.json_schema.strict": {"response_format": SCHEMA},
}
NOT_SERVED: dict[str, tuple[dict[str, Any], str]] = {
    "audio": ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "web_search_options": ({"web_search_options": {}}, "web_search_options"),
    "prompt_cache_options": ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    "messages.audio": (assistant(audio={"id": "a"}), "messages[1].audio"),
    "messages.content.type=image_url": (
        user({"image_url": {"url": "https://example.com/cat.png"}, "type": "image_url"}),
        "messages[0].content[1]",
    ),
    "messages.content.type=input_audio": (
        user({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        "messages[0].content[1]",
    ),
    "messages.content.type=file": (user({"type": "file", "file": {"file_id": "f"}}), "messages[0].content[1]"),
    "messages.content.prompt_cache_breakpoint": (
        user(TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}),
        "messages[0].content[1].prompt_cache_breakpoint",
    ),
    "messages.tool_calls.type=custom": (
        assistant(tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f", "input": ""}}]),
        "messages[1].tool_calls[0].type",
    ),
    "tools.type=custom": ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    "tool_choice.type=custom": ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type"),
}
OTHER_VALUE: dict[str, tuple[dict[str, Any], str]] = {
    "modalities": ({"modalities": ["text", "audio"]}, "modalities[1]"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "prompt_cache_retention": ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    "service_tier": ({"service_tier": "scale"}, "service_tier"),
    "stream_options.include_obfuscation": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    "best_of": ({"best_of": 2}, "best_of"),
    "suffix": ({"suffix": "."}, "suffix"),
}
DEFAULTS: dict[str, Any] = {
    **{"modalities": ["text"], "verbosity": "medium", "prompt_cache_retention": "in_memory", "service_tier": "auto"},
    **dict.fromkeys(("audio", "moderation", "web_search_options", "prompt_cache_options", "prediction")),
}


def check(fields: dict[str, Any]) -> None:
    is_text = not {"best_of", "suffix"}.isdisjoint(fields)
    body = {"model": "m"} | ({"prompt": "Hi"} if is_text else assistant()) | fields
    sent = msgspec.json.encode(body)
    check_request(
        decode_body(sent, msgspec.json.Decoder(CompletionRequest))
        if is_text
        else decode_body(sent, msgspec.json.Decoder(ChatCompletionRequest))
    )


def test_each_entry_has_an_example() -> None:
    table = COMPLETIONS
    examples = (NO_EFFECT.keys(), NOT_SERVED.keys(), OTHER_VALUE.keys())
    assert examples == (table.no_ops.keys(), table.refused.keys(), table.partly.keys())


@pytest.mark.parametrize("fields", [*NO_EFFECT.values(), DEFAULTS], ids=[*NO_EFFECT, "defaults"])
def test_what_has_no_effect_is_accepted(fields: dict[str, Any]) -> None:
    check(fields)


@pytest.mark.parametrize(("field", "case"), (NOT_SERVED | OTHER_VALUE).items(), ids=NOT_SERVED | OTHER_VALUE)
def test_what_is_not_served_is_refused_by_name(field: str, case: tuple[dict[str, Any], str]) -> None:
    fields, param = case
    with pytest.raises(ProtocolError) as caught:
        check(fields)
    assert (caught.value.param, caught.value.code) == (param, "unsupported")
    assert {**COMPLETIONS.refused, **COMPLETIONS.partly}[field] in caught.value.message
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "Hi", "mood": "good"}]}, "messages[0].mood"),
        (assistant(tool_calls=[CALL | {"mood": 1}]), "messages[1].tool_calls[0].mood"),
        ({"tools": [{"type": "function", "function": {"name": "f", "mood": 1}}]}, "tools[0].function.mood"),
        ({"response_format": {"type": "text", "mood": 1}}, "response_format.mood"),
        ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "No"}]}]}, "messages[0].content[0]"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
    ],
)
def test_no_field_is_ignored_wherever_it_stands(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check(fields)
    assert caught.value.param is not None and caught.value.param.startswith(param)
