"""The part that all formats share: text passes, a possible call waits, and a call's arguments are output as they come.

A parser is a coroutine over the answer's characters, so that its outcome cannot depend on how the text is cut. It holds
text back only while that may still be the head of a call. Once the function's name and the beginning of its arguments
are certain, the call has begun, and each character of its arguments that is JSON is output at once.

A possible head that turns out to be none stays text. A call that has begun cannot be taken back: if its arguments stop
being JSON, it breaks off (no `CallEnded`, so that the answer does not end for the reason `tool_calls`), and the rest is
text. With a grammar that enforces the call, neither happens.
"""

import abc
import itertools
import re
import secrets
import string
from collections.abc import Collection, Generator, Iterable

from text.tool_calls.json_scanner import JsonScanner
from text.tool_calls.parts import CallArguments, CallBegun, CallEnded, Part, join_text

Waiting = Generator[None, None, bool]
"""Runs until the text ends, waiting for more at each yield; returns whether it found what it reads."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SPACES = " \t\n\r"
_TRIM_CHARS = 65_536
"""Characters read before they are cut off; cutting more often would copy a long text again and again."""


class ToolCallParser(abc.ABC):
    """Text pieces in, parts out. White space around calls is dropped, all other text is kept.

    names: of the tools offered. Formats that mark calls clearly also output calls to other names, which clients then
    report to the model; other formats take those for text.
    """

    starts: str
    """The characters that may begin a call."""
    separators = SPACES
    """Characters that are dropped after a call if no other text follows."""
    marks: tuple[str, ...] = ()
    """Control tokens that the format is recognised by; a tokenizer must not skip them."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self._text = ""
        self._from = self._at = 0
        self._is_over = False
        self._spaces = ""
        self._follows_call = False
        self._has_calls = False
        self._found: list[Part] = []
        self._start = re.compile(f"[{re.escape(self.starts)}]")
        self._run = self._read()
        next(self._run)

    def add(self, text: str) -> list[Part]:
        self._text += text
        next(self._run)
        return self._take_found()

    def flush(self) -> list[Part]:
        """The remaining parts, at the answer's end."""
        self._is_over = True
        for _ in self._run:
            pass
        if self._spaces and not self._has_calls:
            self._found.append(self._spaces)
        return self._take_found()

    @abc.abstractmethod
    def _read_call(self) -> Waiting:
        """Reads from a character of `starts` on. When it returns, all before `_at` is dealt with, except that if it
        found no call, the caller outputs what it read as text."""

    def _read(self) -> Generator[None]:
        while True:
            found = self._start.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            self._put_text(self._text[self._at : end])
            self._at = end
            self._drop_read()
            if found:
                is_call = yield from self._read_call()
                if not is_call:
                    self._give_up()
            elif self._is_over:
                return
            else:
                yield

    def _take_found(self) -> list[Part]:
        """The parts found, with adjacent text joined."""
        found, self._found = self._found, []
        if len(found) < 2:
            return found
        groups = itertools.groupby(found, key=lambda part: isinstance(part, str))
        return [part for is_text, group in groups for part in ([join_text(group)] if is_text else group)]

    def _drop_read(self) -> None:
        """All that was read is dealt with."""
        self._from = self._at
        if self._at == len(self._text) or self._at > _TRIM_CHARS:
            self._text = self._text[self._at :]
            self._from = self._at = 0

    def _give_up(self) -> None:
        """Output as text what was read but not dealt with."""
        self._put_text(self._text[self._from : self._at])
        self._drop_read()

    def _peek(self) -> Generator[None, None, str]:
        """The next character, "" at the answer's end."""
        while self._at == len(self._text):
            if self._is_over:
                return ""
            yield
        return self._text[self._at]

    def _skip(self, chars: str) -> Generator[None]:
        while True:
            char = yield from self._peek()
            if not char or char not in chars:
                return
            self._at += 1

    def _skip_all(self, literals: Iterable[str]) -> Waiting:
        """Skips one of `literals`, none of which begins another; otherwise stops where none of them continues."""
        left = list(literals)
        size = 0
        while True:
            char = yield from self._peek()
            left = [literal for literal in left if literal[size : size + 1] == char and char]
            if not left:
                return False
            self._at += 1
            size += 1
            if any(len(literal) == size for literal in left):
                return True

    def _read_arguments(self) -> Waiting:
        """Outputs an object as it comes; returns False if it breaks off."""
        scanner = JsonScanner()
        while True:
            taken = []
            for char in self._text[self._at :]:
                spelled = scanner.feed(char)
                if spelled is None:
                    break
                taken.append(spelled)
                self._at += 1
                if scanner.is_complete:
                    break
            if taken:
                self._found.append(CallArguments("".join(taken)))
            is_stuck = self._at < len(self._text)
            self._drop_read()
            if scanner.is_complete:
                self._end_call()
                return True
            if is_stuck or self._is_over:
                return False
            yield

    def _begin_call(self, name: str) -> None:
        self._spaces = ""
        self._has_calls = True
        self._found.append(CallBegun(self._new_id(), name))

    def _read_word(self) -> Generator[None, None, str]:
        """Reads letters, digits, `_` and `-`, perhaps none."""
        start = self._at
        while True:
            char = yield from self._peek()
            if not (char.isalnum() or char in ("_", "-")):
                return self._text[start : self._at]
            self._at += 1

    def _end_call(self) -> None:
        self._follows_call = True
        self._found.append(CallEnded())

    def _put_call(self, name: str, arguments: str) -> None:
        """Outputs a call that was held back as a whole."""
        self._begin_call(name)
        self._found.append(CallArguments(arguments))
        self._end_call()

    def _put_text(self, text: str) -> None:
        """White space waits for what follows it; before a call it is dropped."""
        text = self._spaces + text
        visible = text.rstrip(self.separators if self._follows_call else SPACES)
        if visible:
            # Separators count only beside a call, so the end of this text is examined again.
            visible = text.rstrip(SPACES)
            self._follows_call = False
            self._found.append(visible)
        self._spaces = text[len(visible) :]

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Nine letters and digits: Mistral's templates refuse other ids."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
