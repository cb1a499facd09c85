"""How OpenAI's fields that are not fully supported are treated. The same tables serve error messages and
`docs/compatibility.md`. This module has the table type, and the table of completions and embeddings.

A key is a field's path without indexes; `path=value` is one value of the field. A field of OpenAI's that a request type
lacks and that is in no table fails the test of that page.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_INDEX = re.compile(r"\[[^\]]*\]")
_VALUE = re.compile(r"Invalid (?:enum )?value '(?P<value>[^']*)'")


@dataclass(frozen=True)
class FieldTable:
    no_ops: Mapping[str, str]
    """Accepted without any effect. Values are notes."""
    refused: Mapping[str, str]
    """Refused by name, whatever their value. Values say what to do instead."""
    partly: Mapping[str, str]
    """Some values are supported or have no effect; others are refused with this message."""
    notes: Mapping[str, str]
    """Notes on supported fields."""

    def refusal_of(self, param: str, why: str) -> tuple[str, str] | None:
        """Param and message for an unsupported field of OpenAI's; None for any other error.

        param: where the decoder found the error; why: the decoder's message.
        """
        path, value = _INDEX.sub("", param), _VALUE.search(why)
        if value is not None and (reason := self.refused.get(f"{path}={value['value']}")) is not None:
            place = param.removesuffix(".type") if path in _PARTS else param
            return place, f"{place}: {reason} ({value['value']!r})"
        reason = self.refused.get(path) or self.partly.get(path)
        return None if reason is None else (param, f"{param}: {reason}")


_PARTS = ("messages.content.type", "input.content.type", "input.output.type")
"""A content part is refused as a whole, so the error names the part instead of its `type`."""

_NO_OPS: Mapping[str, str] = {
    "metadata": "up to 16 pairs, as at OpenAI; not stored",
    "store": "nothing is stored; completions cannot be read back",
    "safety_identifier": "",
    "prompt_cache_key": "prefixes are found by their content, within a tenant",
    "prediction": "it would only save time, never change an answer",
    "messages.refusal": "not shown to the model",
    "messages.annotations": "only an empty list, as in OpenAI's answers",
    "messages.tool_calls.index": "as in streams",
    "response_format.json_schema.strict": "a schema is always enforced",
}

TEXT_ONLY = "this model takes text only"
WRITES_TEXT = "this model writes text only"
_NO_CUSTOM_TOOLS = 'custom tools are not supported; describe the tool as a function, with "type": "function"'
CACHED = "prefixes are cached by themselves, for as long as there is room; leave it out"

_REFUSED: Mapping[str, str] = {
    "audio": f"{WRITES_TEXT}; leave it out",
    "moderation": "there is no moderation here; leave it out",
    "web_search_options": "there is no web search here; see server_tools for tools that the platform calls",
    "prompt_cache_options": CACHED,
    "messages.audio": f"{TEXT_ONLY}; send what was said as content",
    "messages.content.type=image_url": f"{TEXT_ONLY}, no images",
    "messages.content.type=input_audio": f"{TEXT_ONLY}, no audio",
    "messages.content.type=file": f"{TEXT_ONLY}, no files; send their text",
    "messages.content.prompt_cache_breakpoint": CACHED,
    "messages.tool_calls.type=custom": _NO_CUSTOM_TOOLS,
    "tools.type=custom": _NO_CUSTOM_TOOLS,
    "tool_choice.type=custom": "custom tools are not supported; name a function",
}

_PARTLY: Mapping[str, str] = {
    "modalities": f'{WRITES_TEXT}: only ["text"]',
    "verbosity": 'only "medium", which changes nothing; say in the prompt how long answers should be',
    "prompt_cache_retention": f'only "in_memory": {CACHED}',
    "service_tier": 'one of "auto", "default", "flex" and "priority" (or "fast")',
    "stream_options.include_obfuscation": "only false: chunks are not padded here",
    "best_of": "only as many as n; ask for n answers with logprobs",
    "suffix": "only an empty one: the models here do not fill in",
}

_NOTES: Mapping[str, str] = {
    "n": "1 to 128; the prompt is computed and billed once",
    "user": "the tenant's end user, to whom usage is attributed",
    "reasoning_effort": "OpenAI's values, for chat templates that use it",
    "top_logprobs": "0 to 20, unless the model's server allows more",
    "functions": "the older form of `tools`",
    "function_call": "the older form of `tool_choice`",
    "messages.name": "for chat templates that use it",
    "messages.function_call": "the older form of `tool_calls`",
    "stop": "up to 16 strings",
}

COMPLETIONS = FieldTable(_NO_OPS, _REFUSED, _PARTLY, _NOTES)
