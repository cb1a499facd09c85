"""Tool calls in a model's text, as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {}}</tool_call>"""

import json
import secrets
from typing import Any

import msgspec

from protocol.messages import FunctionCall, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolCallParser:
    """Text pieces in, text and whole calls out, in order. What is no valid call stays text.

    A call is given out whole: an argument's first half could not be taken back if the second turned out to be no JSON.
    White space around calls is dropped. The outcome does not depend on how the text is cut into pieces.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._spaces = ""
        self._has_calls = False

    def add(self, text: str) -> list[str | ToolCall]:
        self._held += text
        found: list[str | ToolCall] = []
        while self._step(found):
            pass
        return found

    def flush(self) -> list[str | ToolCall]:
        """At the answer's end: what is still held is text, the white space after a last call is not."""
        rest = (_OPEN if self._is_inside else "") + self._held
        self._held, self._is_inside = "", False
        found: list[str | ToolCall] = []
        self._put_text(rest, found)
        if self._spaces and not self._has_calls:
            found.append(self._spaces)
        return found

    def _step(self, found: list[str | ToolCall]) -> bool:
        """Go on to the next marker; whether there was one."""
        marker = _CLOSE if self._is_inside else _OPEN
        before, mark, after = self._held.partition(marker)
        if not mark:
            if not self._is_inside:
                start = _possible_start(self._held, marker)
                self._put_text(self._held[:start], found)
                self._held = self._held[start:]
            return False
        if self._is_inside:
            self._put_call(before, found)
        else:
            self._put_text(before, found)
        self._held, self._is_inside = after, not self._is_inside
        return True

    def _put_call(self, body: str, found: list[str | ToolCall]) -> None:
        call = read_call(body)
        if call is None:
            self._put_text(_OPEN + body + _CLOSE, found)
        else:
            self._spaces, self._has_calls = "", True
            found.append(call)

    def _put_text(self, text: str, found: list[str | ToolCall]) -> None:
        """White space waits for what follows it: before a call it is dropped."""
        text = self._spaces + text
        visible = text.rstrip()
        self._spaces = text[len(visible) :]
        if visible:
            found.append(visible)


def parse_tool_calls(text: str) -> tuple[str | None, list[ToolCall]]:
    """A whole answer's content (None if there is none) and its calls."""
    parser = ToolCallParser()
    parts = parser.add(text) + parser.flush()
    content = "".join([part for part in parts if isinstance(part, str)])
    return content or None, [part for part in parts if isinstance(part, ToolCall)]


def read_call(body: str) -> ToolCall | None:
    """The call that `body` spells, or None. Arguments may be an object or, as some models write, a JSON string."""
    try:
        spelled = msgspec.json.decode(body.strip(), type=_SpelledCall)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    arguments = spelled.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=f"call_{secrets.token_hex(12)}", function=FunctionCall(spelled.name, arguments))


class _SpelledCall(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)


def _possible_start(text: str, marker: str) -> int:
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return len(text) - length
    return len(text)
