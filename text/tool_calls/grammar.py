"""The grammar of an answer's calls, so that their names are among those offered and their arguments fit."""

import json
from collections.abc import Iterable

import msgspec

from protocol.errors import ProtocolError
from protocol.guided import ANY_OBJECT, JsonSchema, Marked, OneOf, Spec, Tag, TaggedText
from protocol.messages import Tool
from protocol.tools import Offer
from text.tool_calls.formats import ToolFormat

MAX_BYTES = 256 * 1024
"""The limit of all schemas together; compiling takes time."""
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}

# The text before the name, between name and arguments, and after the arguments; what begins a call in free text.
_FORMS: dict[ToolFormat, tuple[str, str, str, str]] = {
    "hermes": ('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>", "<tool_call>"),
    "llama": ('{"name": ', ', "parameters": ', "}", '{"name":'),
    "mistral": ('[TOOL_CALLS][{"name": ', ', "arguments": ', "}]", "[TOOL_CALLS]"),
}
_SEPARATORS: dict[ToolFormat, str] = {"llama": "; ", "mistral": ""}


def written_format(tool_format: ToolFormat, offer: Offer) -> ToolFormat:
    """The format that calls are written in; forced ones never are Python's literals, which no JSON schema can hold."""
    return "llama" if tool_format == "pythonic" and offer.must_call else tool_format


def spec_of_calls(tool_format: ToolFormat, offer: Offer, *, answer: Spec | None) -> Spec | None:
    """answer: the format of an answer without calls, None for any text. Returns None if nothing is constrained.

    If calls must come, or an answer without calls has a format, an answer with calls has nothing else. Otherwise text
    is free, and text that begins like a call must be one. Raises ProtocolError if the format cannot be enforced.
    """
    if answer is None and not offer.is_held:
        return None
    tool_format = written_format(tool_format, offer)
    if not offer.must_call and tool_format == "pythonic":
        _check_unheld(offer, answer)
        return None
    tags = tuple(_tag(tool_format, tool, is_held=offer.must_call or bool(tool.function.strict)) for tool in offer.tools)
    if len(msgspec.json.encode(tags)) > MAX_BYTES:
        raise ProtocolError(
            f"tools: more than {MAX_BYTES} bytes to hold calls to; offer fewer", param="tools", code="schema_too_large"
        )
    most = 1 if offer.is_single else None
    calls = TaggedText(
        tags, min_tags=1, max_tags=most, is_text_free=False, separator=_SEPARATORS.get(tool_format, "\n")
    )
    if offer.must_call:
        return Marked(calls)
    if answer is not None:
        return OneOf((answer, Marked(calls)))
    return Marked(TaggedText(tags, (_FORMS[tool_format][3],), max_tags=most))


def _check_unheld(offer: Offer, answer: Spec | None) -> None:
    """Raises ProtocolError if calls or answers need a schema, to which Python's literals cannot be held."""
    strict = next((tool for tool in offer.tools if tool.function.strict), None)
    if strict is not None or answer is not None:
        raise ProtocolError(
            "this model's calls can be held to a schema only where they must come: set tool_choice to required, or "
            "leave out strict and response_format",
            param="tools" if strict is not None else "response_format",
            code="unsupported",
        )


def _tag(tool_format: ToolFormat, tool: Tool, *, is_held: bool) -> Tag:
    before, between, after, _ = _FORMS[tool_format]
    content = JsonSchema(_schema_text(tool)) if is_held else ANY_OBJECT
    name = json.dumps(tool.function.name)
    if tool_format != "mistral":
        return Tag(before + name + between, content, after)
    # In the older or the newer form, whichever the model has learnt.
    mark = _FORMS[tool_format][3]
    older = Tag(before.removeprefix(mark) + name + between, content, after)
    return Tag(mark, OneOf((older, Tag(f"{tool.function.name}[ARGS]", content, ""))), "")


def _schema_text(tool: Tool) -> str:
    """A tool that declares no parameters takes no arguments."""
    parameters = tool.function.parameters
    schema = _NO_ARGUMENTS if not parameters else {"type": "object"} | parameters
    return msgspec.json.encode(schema).decode()


def schemas_of(tools: Iterable[Tool]) -> list[JsonSchema]:
    """Each tool's schema on its own, to find the one at fault."""
    return [JsonSchema(_schema_text(tool)) for tool in tools]
