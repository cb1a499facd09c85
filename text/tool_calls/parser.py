"""What all formats share: text goes through, what may begin a call waits, and a call's arguments go out as they come.

A parser is a coroutine over the answer's characters, so that its outcome cannot depend on how the text is cut. It holds
text back only while that may still be the head of a call. Once the function's name and the beginning of its arguments
are certain, the call has begun and each character of its arguments that is JSON goes out at once.

A head that is none stays text. A call that has begun cannot be taken back: where its arguments stop being JSON it
breaks off (no `CallEnded`, so that the answer does not end for the reason `tool_calls`), and what follows is text.
With a grammar that enforces the call neither happens.
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
"""Runs until the text ends, waiting for more at each yield; whether it found what it reads."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SPACES = " \t\n\r"
_TRIM_CHARS = 65_536
"""Cut off more often, a long text would be copied again and again."""


class ToolCallParser(abc.ABC):
    """Text pieces in, parts out. White space around calls is dropped, all other text is kept.

    names: of the tools that were offered. Formats that mark a call clearly also give out calls to other names, as
    clients then tell the model; formats that do not take those for text.
    """

    starts: str
    """The characters that may begin a call."""
    separators = SPACES
    """Dropped after a call, where no other text follows."""
    marks: tuple[str, ...] = ()
    """Control tokens that the format is read by; a tokenizer must not skip them."""

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
        """At the answer's end."""
        self._is_over = True
        for _ in self._run:
            pass
        if self._spaces and not self._has_calls:
            self._found.append(self._spaces)
        return self._take_found()

    @abc.abstractmethod
    def _read_call(self) -> Waiting:
        """Reads from a character of `starts` on. When it returns, all before `_at` is dealt with, except that if it
        found no call the caller gives out what it read as text."""

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
        """Text that stands together in one piece."""
        found, self._found = self._found, []
        if len(found) < 2:
            return found
        groups = itertools.groupby(found, key=lambda part: isinstance(part, str))
        return [part for is_text, group in groups for part in ([join_text(group)] if is_text else group)]

    def _drop_read(self) -> None:
        """What was read is dealt with."""
        self._from = self._at
        if self._at == len(self._text) or self._at > _TRIM_CHARS:
            self._text = self._text[self._at :]
            self._from = self._at = 0

    def _give_up(self) -> None:
        """What was read, and not dealt with, is text."""
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
        """One of `literals`, of which none is the beginning of another; else it stops where none goes on so."""
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
        """Gives out an object as it comes; False where it breaks off."""
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
        """Letters, digits, `_` and `-`, perhaps none."""
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
        """A call that was held back as a whole."""
        self._begin_call(name)
        self._found.append(CallArguments(arguments))
        self._end_call()

    def _put_text(self, text: str) -> None:
        """White space waits for what follows it: before a call it is dropped."""
        text = self._spaces + text
        visible = text.rstrip(self.separators if self._follows_call else SPACES)
        if visible:
            # Separators count only beside a call, so the end of this text is looked at again.
            visible = text.rstrip(SPACES)
            self._follows_call = False
            self._found.append(visible)
        self._spaces = text[len(visible) :]

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Mistral's templates refuse others."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
