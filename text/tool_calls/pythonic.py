"""Calls as Llama 3.2 and 4 may write them: [f(a=1), g(b="x")], perhaps between <|python_start|> and <|python_end|>.

Only its form marks a list as calls, so only calls to offered tools count. A value is output as JSON once it is whole,
since JSON spells `'it'` and `True` differently; JSON's own `true`, `false` and `null` are accepted, too.
"""

import ast
import json
import math
import warnings
from collections.abc import Generator
from typing import Any

from text.tool_calls.parser import SPACES, ToolCallParser, Waiting
from text.tool_calls.parts import CallArguments

_START, _END = "<|python_start|>", "<|python_end|>"
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}


class PythonicParser(ToolCallParser):
    starts = "[<"
    marks = (_START, _END)

    def _read_call(self) -> Waiting:
        if self._text[self._at] == "<":
            is_marked = yield from self._skip_all((_START,))
            if not is_marked:
                return False
            yield from self._skip(SPACES)
        is_list = yield from self._skip_all(("[",))
        if not is_list:
            return False
        while True:
            yield from self._skip(SPACES)
            is_call = yield from self._read_one()
            if not is_call:
                return False
            yield from self._skip(SPACES)
            end = yield from self._peek()
            if end not in ("]", ","):
                return False
            self._at += 1
            self._drop_read()
            if end == "]":
                return (yield from self._read_end())

    def _read_end(self) -> Waiting:
        yield from self._skip(SPACES)
        is_marked = yield from self._skip_all((_END,))
        if is_marked:
            self._drop_read()
        return is_marked

    def _read_one(self) -> Waiting:
        """`name(key=value, ...)`. The call begins with its first whole value or, if it has none, with its end."""
        name = yield from self._read_word()
        if name not in self.names:
            return False
        is_open = yield from self._skip_all(("(",))
        if not is_open:
            return False
        keys: set[str] = set()
        while True:
            yield from self._skip(SPACES)
            char = yield from self._peek()
            if char == ")":
                break
            is_pair = yield from self._read_pair(name, keys)
            if not is_pair:
                return False
            char = yield from self._peek()
            if char == ")":
                break
            self._at += 1
        self._at += 1
        if not keys:
            self._begin_call(name)
        self._put_arguments("}" if keys else "{}")
        self._end_call()
        return True

    def _read_pair(self, name: str, keys: set[str]) -> Waiting:
        """Reads up to the comma or parenthesis after the value."""
        key = yield from self._read_word()
        yield from self._skip(SPACES)
        is_equal = yield from self._skip_all(("=",))
        if not (is_equal and key.isidentifier() and key not in keys):
            return False
        start = self._at
        is_value = yield from self._skip_value()
        value = _as_json(self._text[start : self._at]) if is_value else None
        if value is None:
            return False
        if not keys:
            self._begin_call(name)
        self._put_arguments(f"{', ' if keys else '{'}{json.dumps(key)}: {value}")
        keys.add(key)
        return True

    def _skip_value(self) -> Waiting:
        """Skips to the comma or parenthesis that ends the value, outside of brackets and quotes."""
        closing: list[str] = []
        while True:
            char = yield from self._peek()
            if not char or (not closing and char in "]}"):
                return False
            if not closing and char in ",)":
                return True
            self._at += 1
            if char in "\"'":
                yield from self._skip_string(char)
            elif char in _CLOSING:
                closing.append(_CLOSING[char])
            elif char in ")]}" and char != closing.pop():
                return False

    def _skip_string(self, quote: str) -> Generator[None]:
        while True:
            char = yield from self._peek()
            self._at += bool(char)
            if char == "\\":
                char = yield from self._peek()
                self._at += bool(char)
            elif char == quote or not char:
                return

    def _put_arguments(self, text: str) -> None:
        self._found.append(CallArguments(text))
        self._drop_read()


def _as_json(literal: str) -> str | None:
    """The literal as JSON; None if it is no literal, or has no form in JSON."""
    try:
        with warnings.catch_warnings():
            # Warnings about backslashes that escape nothing.
            warnings.simplefilter("ignore")
            tree = ast.parse(literal.strip(), mode="eval")
        return json.dumps(_value(tree.body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    """Raises ValueError."""
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key that is no string")
        return {key: _value(each) for key, each in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand)
        if isinstance(number, int | float) and math.isfinite(number):
            return -number
    raise ValueError("not a literal of JSON's kinds")
