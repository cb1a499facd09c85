"""The fields by which a request constrains the format of its answer: OpenAI's `response_format`, vLLM's
`structured_outputs` and its older `guided_...` fields. All of them are converted to one spec."""

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from protocol import guided
from protocol.errors import ProtocolError
from protocol.tag_formats import Structure, TagFormat, triggered

if TYPE_CHECKING:
    from protocol.requests import GenerationRequest

MAX_FORMAT_BYTES = 65_536
"""Maximum size of a schema, grammar or list of choices, as sent."""
ABSENT = msgspec.Raw()
"""Stands for None, which msgspec does not allow in a union with raw JSON. Each field makes its own through a default
factory, because an OpenAPI document could not show it as a default."""
Text = Annotated[str, Meta(min_length=1)]


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`strict` has no effect: the schema is always enforced."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[Structure] | None = None
    triggers: list[str] | None = None
    format: TagFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Set exactly one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`."""

    json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """A schema, or a string that contains one."""
    regex: Text | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: Text | None = None
    """A string that contains a `response_format` of that type."""
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None
    """No effect: there is only one engine."""


class Wanted(NamedTuple):
    """A requested format. param: the field that requests it."""

    spec: guided.Spec
    param: str


_STRUCTURAL_TAG = msgspec.json.Decoder(ResponseFormat)
_fields_of_all = attrgetter("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_NOTHING = (None, ABSENT, None, None, None)


def wanted_format(request: "GenerationRequest") -> Wanted | None:
    """The requested format; None if any text is allowed. Raises ProtocolError."""
    if _fields_of_all(request) == _NOTHING and getattr(request, "response_format", None) is None:
        # Fast path for most requests.
        return None
    found = [*_of_response_format(request), *_of_structured_outputs(request), *_of_older_fields(request)]
    if len(found) > 1:
        names = " and ".join(each.param for each in found)
        raise ProtocolError(f"{names} both say what the answer must look like; send one of them", param=found[1].param)
    return found[0] if found else None


def asks_for_structure(request: "GenerationRequest") -> bool:
    """Whether the requested format is more than a choice or a regular expression."""
    wanted = wanted_format(request)
    return wanted is not None and not isinstance(wanted.spec, guided.Choice | guided.Regex)


def _of_response_format(request: "GenerationRequest") -> Iterator[Wanted]:
    sent: ResponseFormat | None = getattr(request, "response_format", None)
    if sent is None or sent.type == "text":
        return
    param = "response_format"
    if sent.type == "json_object":
        yield Wanted(guided.ANY_OBJECT, param)
    elif sent.type == "structural_tag":
        yield Wanted(_structural_tag(sent, param), param)
    else:
        if sent.json_schema is None or _is_absent(sent.json_schema.schema):
            raise ProtocolError("response_format.json_schema needs a schema", param="response_format.json_schema")
        param = "response_format.json_schema.schema"
        yield Wanted(guided.JsonSchema(_text(sent.json_schema.schema, param)), param)


def _of_structured_outputs(request: "GenerationRequest") -> Iterator[Wanted]:
    sent = request.structured_outputs
    if sent is None:
        return
    whitespace = "" if sent.disable_any_whitespace else sent.whitespace_pattern
    is_closed = bool(sent.disable_additional_properties)
    found: list[Wanted] = []
    if not _is_absent(sent.json):
        param = "structured_outputs.json"
        found.append(Wanted(guided.JsonSchema(_schema_text(sent.json, param), whitespace, is_closed), param))
    if sent.json_object:
        found.append(Wanted(guided.JsonSchema(guided.ANY_OBJECT.schema, whitespace), "structured_outputs.json_object"))
    found += _of_texts("structured_outputs.", sent.regex, sent.choice, sent.grammar)
    if sent.structural_tag is not None:
        found.append(_of_tag_text(sent.structural_tag, "structured_outputs.structural_tag"))
    if not found:
        raise ProtocolError(
            "structured_outputs needs one of json, regex, choice, grammar, json_object and structural_tag",
            param="structured_outputs",
        )
    yield from found


def _of_older_fields(request: "GenerationRequest") -> Iterator[Wanted]:
    if not _is_absent(request.guided_json):
        text = _schema_text(request.guided_json, "guided_json")
        yield Wanted(guided.JsonSchema(text, request.guided_whitespace_pattern), "guided_json")
    yield from _of_texts("guided_", request.guided_regex, request.guided_choice, request.guided_grammar)


def _of_texts(prefix: str, regex: str | None, choice: list[str] | None, grammar: str | None) -> Iterator[Wanted]:
    if regex is not None:
        yield Wanted(guided.Regex(_bounded(regex, f"{prefix}regex")), f"{prefix}regex")
    if choice is not None:
        _bounded("".join(choice) + "," * len(choice), f"{prefix}choice")
        yield Wanted(guided.Choice(tuple(choice)), f"{prefix}choice")
    if grammar is not None:
        yield Wanted(guided.Grammar(_bounded(grammar, f"{prefix}grammar")), f"{prefix}grammar")


def _of_tag_text(text: str, param: str) -> Wanted:
    try:
        sent = _STRUCTURAL_TAG.decode(_bounded(text, param).encode())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"{param} is no structural tag: {error}", param=param) from error
    if sent.type != "structural_tag":
        raise ProtocolError(f'{param} needs "type": "structural_tag", got {sent.type!r}', param=param)
    return Wanted(_structural_tag(sent, param), param)


def _structural_tag(sent: ResponseFormat, param: str) -> guided.Spec:
    if sent.format is not None:
        spec = sent.format.spec()
    elif sent.structures and sent.triggers:
        spec = triggered(sent.structures, sent.triggers)
    else:
        raise ProtocolError("a structural tag needs a format, or structures and triggers", param=param)
    if len(msgspec.json.encode(spec)) > MAX_FORMAT_BYTES:
        raise _too_long(param)
    return spec


def _is_absent(sent: msgspec.Raw) -> bool:
    return bytes(sent) in (b"", b"null")


def _schema_text(sent: msgspec.Raw, param: str) -> str:
    text = _text(sent, param)
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _text(sent: msgspec.Raw, param: str) -> str:
    if len(bytes(sent)) > MAX_FORMAT_BYTES:
        raise _too_long(param)
    return bytes(sent).decode()


def _bounded(text: str, param: str) -> str:
    if len(text.encode(errors="surrogatepass")) > MAX_FORMAT_BYTES:
        raise _too_long(param)
    return text


def _too_long(param: str) -> ProtocolError:
    return ProtocolError(f"{param} is longer than {MAX_FORMAT_BYTES} bytes", param=param, code="schema_too_large")
