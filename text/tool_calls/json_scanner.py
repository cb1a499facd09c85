"""Checks by character whether a text is JSON so far, so that a growing value can be sent and never be taken back."""

from enum import Enum, auto

_SPACES = " \t\n\r"
_DIGITS = "0123456789"
_HEX_DIGITS = "0123456789abcdefABCDEF"
_LITERALS = {"t": "true", "f": "false", "n": "null"}


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    NUMBER = auto()
    NOTHING = auto()


class JsonScanner:
    """Scans one value by RFC 8259, except that a control character inside a string, which models write, is escaped.

    A value that is an object, list, string or literal is complete with its last character; a bare number never is.
    """

    def __init__(self) -> None:
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._num_hex = 0
        self._rest = ""
        self._number = ""

    @property
    def depth(self) -> int:
        """The number of open objects and lists."""
        return len(self._open)

    @property
    def is_complete(self) -> bool:
        return self._expect is _Expect.NOTHING

    @property
    def is_in_string(self) -> bool:
        return self._expect in (_Expect.STRING, _Expect.ESCAPE, _Expect.HEX)

    def feed(self, char: str) -> str | None:
        """The character as JSON spells it; None, changing nothing, if JSON cannot continue with it."""
        expect = self._expect
        if expect is _Expect.STRING:
            return self._in_string(char)
        if expect is _Expect.ESCAPE:
            return self._escaped(char)
        if expect is _Expect.HEX:
            return self._hex(char)
        if expect is _Expect.LITERAL:
            return self._literal(char)
        if expect is _Expect.NUMBER:
            return self._in_number(char)
        if char in _SPACES:
            return char
        return char if self._structure(char, expect) else None

    def _structure(self, char: str, expect: _Expect) -> bool:
        if char in "]}" and self._may_close(char, expect):
            self._open.pop()
            self._end_value()
            return True
        if expect in (_Expect.VALUE, _Expect.VALUE_OR_END):
            return self._begin(char)
        if expect in (_Expect.KEY, _Expect.KEY_OR_END) and char == '"':
            self._expect, self._is_key = _Expect.STRING, True
        elif expect is _Expect.COLON and char == ":":
            self._expect = _Expect.VALUE
        elif expect is _Expect.COMMA_OR_END and char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
        else:
            return False
        return True

    def _may_close(self, char: str, expect: _Expect) -> bool:
        ends = (_Expect.COMMA_OR_END, _Expect.KEY_OR_END if char == "}" else _Expect.VALUE_OR_END)
        return bool(self._open) and self._open[-1] == char and expect in ends

    def _begin(self, char: str) -> bool:
        if char == "{":
            self._open.append("}")
            self._expect = _Expect.KEY_OR_END
        elif char == "[":
            self._open.append("]")
            self._expect = _Expect.VALUE_OR_END
        elif char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char in _LITERALS:
            self._expect, self._rest = _Expect.LITERAL, _LITERALS[char][1:]
        elif char == "-" or char in _DIGITS:
            self._expect, self._number = _Expect.NUMBER, _after_number("", char)
        else:
            return False
        return True

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END if self._open else _Expect.NOTHING

    def _in_string(self, char: str) -> str:
        if char == '"':
            if self._is_key:
                self._expect = _Expect.COLON
            else:
                self._end_value()
        elif char == "\\":
            self._expect = _Expect.ESCAPE
        elif char < " ":
            return f"\\u{ord(char):04x}"
        return char

    def _escaped(self, char: str) -> str | None:
        if char not in '"\\/bfnrtu':
            return None
        self._expect, self._num_hex = (_Expect.HEX, 4) if char == "u" else (_Expect.STRING, 0)
        return char

    def _hex(self, char: str) -> str | None:
        if char not in _HEX_DIGITS:
            return None
        self._num_hex -= 1
        if not self._num_hex:
            self._expect = _Expect.STRING
        return char

    def _literal(self, char: str) -> str | None:
        if char != self._rest[0]:
            return None
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return char

    def _in_number(self, char: str) -> str | None:
        """A number ends with the character after it."""
        after = _after_number(self._number, char)
        if after:
            self._number = after
            return char
        if self._number not in _NUMBER_ENDS:
            return None
        self._end_value()
        taken = self.feed(char)
        if taken is None:
            self._expect = _Expect.NUMBER
        return taken


_NUMBER_ENDS = ("zero", "integer", "fraction", "exponent")


def _after_number(state: str, char: str) -> str:
    """The state of a number after one more character; "" if a number cannot continue with it."""
    if char in _DIGITS:
        if state in ("", "minus"):
            return "zero" if char == "0" else "integer"
        return {"integer": "integer", "point": "fraction", "fraction": "fraction"}.get(
            state, "exponent" if state in ("e", "sign", "exponent") else ""
        )
    if char == "-" and state == "":
        return "minus"
    if char == "." and state in ("zero", "integer"):
        return "point"
    if char in "eE" and state in ("zero", "integer", "fraction"):
        return "e"
    return "sign" if char in "+-" and state == "e" else ""
