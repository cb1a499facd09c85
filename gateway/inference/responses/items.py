"""Input items as chat messages."""

from collections.abc import Sequence
from typing import Any

from protocol.responses_api import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    MessageItem,
    OutputText,
    PlainText,
    decode_items,
)

Json = dict[str, Any]


def items_of(sent: str | Sequence[Json]) -> list[Json]:
    """The input as a list of items; a plain string becomes one user message."""
    if not isinstance(sent, str):
        return list(sent)
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": sent}]}]


def messages_of(items: list[Json]) -> list[Json]:
    """Raises ProtocolError, naming the place. `reasoning` items are not shown to the model again."""
    messages: list[Json] = []
    for item in decode_items(items):
        if isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": _text(item.content)})
        elif isinstance(item, FunctionCallItem):
            function = {"name": item.name, "arguments": item.arguments}
            _caller(messages)["tool_calls"].append({"id": item.call_id, "type": "function", "function": function})
        elif isinstance(item, FunctionCallOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
    return messages


def _caller(messages: list[Json]) -> Json:
    """The assistant message that tool calls are added to; appended if the last message is not one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _text(content: str | list[InputText | OutputText | PlainText]) -> str:
    return content if isinstance(content, str) else "".join([part.text for part in content])
