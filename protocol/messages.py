"""Chat messages, tools and tool calls in the format of OpenAI's API."""

from typing import Annotated, Any, Literal

import msgspec


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """A refusal in an assistant's message; in other messages it is rejected."""

    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Content = str | list[TextPart | RefusalPart]


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | msgspec.UnsetType = msgspec.UNSET
    """Copied by clients from a stream; ignored."""


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", kw_only=True, forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer", kw_only=True, forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", kw_only=True, forbid_unknown_fields=True):
    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", kw_only=True, forbid_unknown_fields=True):
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    """The older form of a single tool call."""
    reasoning_content: str | None = None
    """The model's reasoning; some chat templates show it to the model again."""
    reasoning: str | None = None
    """Newer vLLM's name for `reasoning_content`."""
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    audio: None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", kw_only=True, forbid_unknown_fields=True):
    content: Content
    tool_call_id: str


class FunctionMessage(msgspec.Struct, tag_field="role", tag="function", kw_only=True, forbid_unknown_fields=True):
    """The result of a function call, in OpenAI's older form of a tool message."""

    content: Content | None = None
    name: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"] = "function"
    function: FunctionDefinition


def content_text(content: Content | None) -> str:
    """The text of a message's content; parts are joined without a separator."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)
