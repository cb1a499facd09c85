"""Log lines of all processes on one terminal: `name | line`, a colour for each name."""

import sys
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92)
_NAME_WIDTH = 12
OWN_NAME = "up"


class Console:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.is_terminal = self._stream.isatty()
        self._colours: dict[str, int] = {OWN_NAME: 1}

    def say(self, text: str) -> None:
        """A line of our own."""
        self.line(OWN_NAME, text)

    def line(self, name: str, text: str) -> None:
        self._write(f"{self._prefix(name)} {text}\n")

    def block(self, text: str) -> None:
        self._write(text + "\n")

    def _prefix(self, name: str) -> str:
        padded = f"{name:<{_NAME_WIDTH}} |"
        if not self.is_terminal:
            return padded
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\x1b[{colour}m{padded}\x1b[0m"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            # The reader of our output has gone, which is no reason to stop serving.
            pass
