"""Each entry of the Responses API's table holds for a real body."""

from typing import Any

import msgspec
import pytest

from protocol.errors import ProtocolError
from protocol.responses_api import InputItem, decode_items, decode_response
from protocol.responses_fields import RESPONSES

Json = dict[str, Any]
TOOL = {"type": "function", "name": "f"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "encrypted_content": "x"}
EXPLICIT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def said(*parts: Json, role: str = "user", **fields: Any) -> Json:
    return {"input": [{"role": role, "content": list(parts)} | fields]}


def text(**fields: Any) -> Json:
    return {"type": "input_text", "text": "Hi"} | fields


def items(*sent: Json) -> Json:
    return {"input": list(sent)}


def output_of(part: Json) -> Json:
    return items(CALL, OUTPUT | {"output": [part]})


NO_EFFECT: dict[str, Json] = {
    "metadata": {"metadata": {"team": "a"}},
    "safety_identifier": {"safety_identifier": "u"},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "input.id": items(CALL | {"id": "fc"}, OUTPUT | {"id": "fo"}),
    "input.status": items(CALL | {"status": "completed"}),
    "input.phase": said({"type": "output_text", "text": "Yes"}, role="assistant", phase="final_answer"),
    "input.summary": items(THOUGHT),
    "input.encrypted_content": items(THOUGHT | {"content": [{"type": "reasoning_text", "text": "Hm"}]}),
    "input.content.annotations": said({"type": "output_text", "text": "Yes", "annotations": []}, role="assistant"),
    "input.content.logprobs": said({"type": "output_text", "text": "Yes", "logprobs": []}, role="assistant"),
}
REFUSED: dict[str, tuple[Json, str]] = {
    "access_programs": ({"access_programs": {"cyber": "x"}}, "access_programs"),
    "background_options": ({"background_options": {}}, "background_options"),
    "context_management": ({"context_management": [{"type": "compaction"}]}, "context_management"),
    "conversation": ({"conversation": "conv_1"}, "conversation"),
    "image": ({"image": {"context_compression": "auto"}}, "image"),
    "include": ({"include": ["reasoning.encrypted_content"]}, "include"),
    "max_tool_calls": ({"max_tool_calls": 3}, "max_tool_calls"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "prompt": ({"prompt": {"id": "p"}}, "prompt"),
    "prompt_cache_options": ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    **{
        f"reasoning.{name}": ({"reasoning": {name: "auto"}}, f"reasoning.{name}")
        for name in ("context", "generate_summary", "mode", "summary")
    },
    "input.content.type=input_image": (said(text(), {"type": "input_image"}), "input[0].content[1]"),
    "input.content.type=input_file": (said({"type": "input_file", "file_id": "f"}), "input[0].content[0]"),
    "input.content.type=refusal": (said({"type": "refusal", "refusal": "No"}, role="assistant"), "input[0].content[0]"),
    "input.content.type=reasoning_text": (said({"type": "reasoning_text", "text": "Hm"}), "input[0].content[0]"),
    "input.content.prompt_cache_breakpoint": (said(text(**EXPLICIT)), "input[0].content[0].prompt_cache_breakpoint"),
    "input.output.type=input_image": (output_of({"type": "input_image"}), "input[1].output[0]"),
    "input.output.type=input_file": (output_of({"type": "input_file"}), "input[1].output[0]"),
    "input.output.prompt_cache_breakpoint": (output_of(text(**EXPLICIT)), "input[1].output[0].prompt_cache_breakpoint"),
    "input.async": (items(CALL | {"async": True}), "input[0].async"),
    "input.caller": (items(CALL | {"caller": {"type": "direct"}}), "input[0].caller"),
    "input.namespace": (items(CALL, OUTPUT | {"namespace": "n"}), "input[1].namespace"),
    "tools.allowed_callers": ({"tools": [TOOL | {"allowed_callers": ["direct"]}]}, "tools[0].allowed_callers"),
    "tools.async": ({"tools": [TOOL | {"async": True}]}, "tools[0].async"),
    "tools.defer_loading": ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    "tools.output_schema": ({"tools": [TOOL | {"output_schema": {}}]}, "tools[0].output_schema"),
}
KINDS = {
    "input.type": lambda kind: (items({"role": "user", "content": "Hi"}, {"type": kind, "id": "i"}), "input[1].type"),
    "tools.type": lambda kind: ({"tools": [{"type": kind}]}, "tools[0].type"),
    "tool_choice.type": lambda kind: ({"tool_choice": {"type": kind}}, "tool_choice.type"),
}
"""What is refused by its type alone."""
for entry in RESPONSES.refused:
    field, is_value, kind = entry.partition("=")
    if is_value and field in KINDS:
        REFUSED[entry] = KINDS[field](kind)
PARTLY: dict[str, tuple[Json, str]] = {
    "background": ({"background": True}, "background"),
    "top_logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "text.verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity"),
    "prompt_cache_retention": ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    "service_tier": ({"service_tier": "scale"}, "service_tier"),
    "stream_options.include_obfuscation": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
}
DEFAULTS: Json = {
    **{"background": False, "include": [], "top_logprobs": 0, "text": {"verbosity": "medium"}},
    **{"prompt_cache_retention": "in_memory", "service_tier": "auto", "truncation": "disabled", "store": True},
    **dict.fromkeys(("conversation", "prompt", "max_tool_calls", "moderation", "reasoning")),
}


def decode(fields: Json) -> list[InputItem]:
    request = decode_response(msgspec.json.encode({"model": "m", "input": "Hi"} | fields))
    return decode_items(request.input) if isinstance(request.input, list) else []


def test_each_entry_has_an_example() -> None:
    examples = (NO_EFFECT.keys(), REFUSED.keys(), PARTLY.keys())
    assert examples == (RESPONSES.no_ops.keys(), RESPONSES.refused.keys(), RESPONSES.partly.keys())


@pytest.mark.parametrize("fields", [*NO_EFFECT.values(), DEFAULTS], ids=[*NO_EFFECT, "defaults"])
def test_what_has_no_effect_is_accepted(fields: Json) -> None:
    decode(fields)


@pytest.mark.parametrize(("entry", "case"), (REFUSED | PARTLY).items(), ids=REFUSED | PARTLY)
def test_what_is_not_served_is_refused_by_name(entry: str, case: tuple[Json, str]) -> None:
    fields, param = case
    with pytest.raises(ProtocolError) as caught:
        decode(fields)
    assert (caught.value.param, caught.value.code) == (param, "unsupported")
    assert {**RESPONSES.refused, **RESPONSES.partly}[entry] in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mood": "good"}, "mood"),
        (items({"role": "user", "content": "Hi", "mood": 1}), "input[0].mood"),
        (items(CALL | {"mood": 1}), "input[0].mood"),
        (items(OUTPUT | {"mood": 1}), "input[0].mood"),
        (items(THOUGHT | {"mood": 1}), "input[0].mood"),
        (said(text(mood=1)), "input[0].content[0].mood"),
        ({"tools": [TOOL | {"mood": 1}]}, "tools[0].mood"),
        ({"tool_choice": {"type": "function", "name": "f", "mood": 1}}, "tool_choice.mood"),
        ({"reasoning": {"mood": 1}}, "reasoning.mood"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
    ],
)
def test_no_field_is_ignored_wherever_it_stands(fields: Json, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(fields)
    assert caught.value.param is not None and caught.value.param.startswith(param)
