"""The body of `POST /v1/responses`: OpenAI's fields that are supported. All others are refused by name
(`protocol.responses_fields`)."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.checks import decode_body, field_error, refused_value
from protocol.requests import Metadata, PositiveInt, ServiceTier, UserName
from protocol.responses_fields import RESPONSES


class ResponseTextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    """Checked like `response_format` of a chat completion."""
    verbosity: Literal["medium"] | None = None


class ResponseReasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Annotated[str, Meta(max_length=32)] | None = None
    summary: None = None
    generate_summary: None = None
    context: None = None
    mode: None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponseFunctionTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: None = None
    is_async: None = msgspec.field(name="async", default=None)
    defer_loading: None = None
    output_schema: None = None


class ResponseNamedChoice(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: str


class ResponseAllowedTool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: str


class ResponseAllowedTools(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[ResponseAllowedTool]


ResponseToolChoice = Literal["none", "auto", "required"] | ResponseNamedChoice | ResponseAllowedTools


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=200)]
    input: str | list[dict[str, Any]]
    """Items: `InputItem`; a missing type means a message."""
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=100)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    tools: list[ResponseFunctionTool] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseTextOptions | None = None
    reasoning: ResponseReasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: UserName | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    background: bool | None = None
    include: Annotated[list[str], Meta(max_length=0)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    # Known fields that are refused by name.
    access_programs: None = None
    background_options: None = None
    context_management: None = None
    conversation: None = None
    image: None = None
    max_tool_calls: None = None
    moderation: None = None
    prompt: None = None
    prompt_cache_options: None = None


class InputText(msgspec.Struct, kw_only=True, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: None = None


class PlainText(msgspec.Struct, kw_only=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """Text of an earlier answer, in the form in which answers contain it."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message", forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | OutputText | PlainText]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: None = None
    is_async: None = msgspec.field(name="async", default=None)


class FunctionCallOutputItem(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function_call_output", forbid_unknown_fields=True
):
    call_id: str
    output: str | list[InputText | OutputText | PlainText]
    name: str | None = None
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: None = None


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning", forbid_unknown_fields=True):
    id: str | None = None
    summary: list[Any] | None = None
    content: list[Any] | None = None
    encrypted_content: str | None = None
    status: str | None = None


InputItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem


class InputItems(msgspec.Struct):
    input: list[InputItem]


_REQUEST = msgspec.json.Decoder(ResponsesRequest)


def decode_response(body: bytes) -> ResponsesRequest:
    """Raises ProtocolError."""
    request = decode_body(body, _REQUEST, RESPONSES)
    if request.background:
        raise refused_value("background", RESPONSES)
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        raise refused_value("stream_options.include_obfuscation", RESPONSES)
    return request


def decode_items(sent: list[dict[str, Any]]) -> list[InputItem]:
    """Raises ProtocolError, naming the place in `input`."""
    try:
        return msgspec.convert({"input": [{"type": "message", **item} for item in sent]}, InputItems).input
    except msgspec.ValidationError as error:
        raise field_error(str(error), RESPONSES) from error
