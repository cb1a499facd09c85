"""Chat messages, tools and tool calls as OpenAI's API spells them."""

from typing import Annotated, Any, Literal

import msgspec


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """An assistant's: `check_request` refuses it elsewhere."""

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
    """As a stream had it; it means nothing here."""


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
    """The older form of one call."""
    reasoning_content: str | None = None
    """What the model thought; some templates show it again."""
    reasoning: str | None = None
    """The same, as newer vLLM calls it."""
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    audio: None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", kw_only=True, forbid_unknown_fields=True):
    content: Content
    tool_call_id: str


class FunctionMessage(msgspec.Struct, tag_field="role", tag="function", kw_only=True, forbid_unknown_fields=True):
    """The older form of a tool's message."""

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
    """The text of a message's content; parts are joined as they stand."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)
