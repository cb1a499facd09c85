"""A call that is a JSON object: {"name": "f", "arguments": {...}}, or with `parameters`, as in Llama."""

import json
import re
from collections.abc import Generator
from typing import Any

import msgspec

from text.tool_calls.json_scanner import JsonScanner
from text.tool_calls.parser import NAME, ToolCallParser, Waiting

_MAX_HEAD_FIELDS = 3
"""The type, the name and the arguments; further fields are not examined before the end."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"(?:name|function)"\s*:\s*'
    rf'(?P<name>{_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*\{{',
    re.DOTALL,
)
"""The order in which models write a call; a call in any other order waits for its end."""
_FIRST_KEY = re.compile(r'\{\s*"(?:name|function|type|id|arguments|parameters)"\s*')
_NAME_FIRST = re.compile(rf'\{{\s*"name"\s*:\s*(?P<name>{_STRING})\s*', re.DOTALL)


class JsonCallParser(ToolCallParser):
    """only_offered: an object with another name is text."""

    only_offered = False

    def _read_json_call(self) -> Waiting:
        """Reads from the opening brace to the closing one. If it finds no call, the text read is not output yet."""
        start, scanner, taken, num_fields = self._at, JsonScanner(), list[str](), 0
        while True:
            # As `_peek`, without a generator for each character.
            if self._at == len(self._text):
                if self._is_over:
                    return False
                yield
                continue
            char = self._text[self._at]
            spelled = scanner.feed(char)
            if spelled is None:
                return False
            self._at += 1
            taken.append(spelled)
            if scanner.is_complete:
                return self._take_whole("".join(taken))
            if scanner.is_in_string or char not in ":,{" or num_fields > _MAX_HEAD_FIELDS:
                continue
            num_fields += char == ":" and scanner.depth == 1
            head = self._text[start : self._at]
            found = _HEAD.fullmatch(head) if scanner.depth == 2 and char == "{" else None
            name = self._accept(found["name"]) if found else None
            if name is not None:
                break
            if char != "{" and scanner.depth == 1 and not self._may_be_call(head):
                return False
        self._begin_call(name)
        self._at -= 1
        self._drop_read()
        is_whole = yield from self._read_arguments()
        if is_whole:
            yield from self._read_tail(scanner)
        return True

    def _read_tail(self, scanner: JsonScanner) -> Generator[None]:
        """Reads what may follow the arguments: other fields, which are ignored, and the closing brace."""
        scanner.feed("}")
        while not scanner.is_complete:
            char = yield from self._peek()
            if not char or scanner.feed(char) is None:
                self._give_up()
                return
            self._at += 1
        self._drop_read()

    def _may_be_call(self, head: str) -> bool:
        """head: the text up to a colon or comma of the object itself."""
        if head.endswith(","):
            named = _NAME_FIRST.fullmatch(head[:-1])
            return named is None or self._accept(named["name"]) is not None
        is_first = head.count('"') == 2
        return not is_first or _FIRST_KEY.fullmatch(head[:-1]) is not None

    def _accept(self, spelled: str) -> str | None:
        """The function's name from a JSON string; None if it cannot be one."""
        name = json.loads(spelled, strict=False)
        return name if self._is_name(name) else None

    def _is_name(self, name: str) -> bool:
        return name in self.names or (not self.only_offered and NAME.fullmatch(name) is not None)

    def _take_whole(self, written: str) -> bool:
        """Takes an object that was held back to its end, whatever the order of its fields."""
        try:
            call = msgspec.json.decode(written, type=_SpelledCall)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return False
        if isinstance(call.function, _SpelledCall):
            call = call.function
        name = call.function if isinstance(call.function, str) else call.name
        # A bare object that has only a name is hardly a call.
        arguments = _written_object(call, default=b"" if self.only_offered else b"{}")
        if name is None or arguments is None or not self._is_name(name):
            return False
        self._put_call(name, arguments)
        self._drop_read()
        return True


class _SpelledCall(msgspec.Struct):
    name: str | None = None
    function: "str | _SpelledCall | None" = None
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


def _written_object(call: _SpelledCall, *, default: bytes) -> str | None:
    """The arguments as written; some models write them inside a JSON string, and some write none at all."""
    written = bytes(call.arguments) or bytes(call.parameters) or default
    try:
        value: Any = msgspec.json.decode(written)
        if isinstance(value, str):
            written = value.encode()
            value = msgspec.json.decode(written)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return written.decode() if isinstance(value, dict) else None
