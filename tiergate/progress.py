"""The progress of a long task, on one line of the terminal; nothing if stderr is not a terminal."""

import sys


class Progress:
    def __init__(self, noun: str, *, total: int | None = None, is_shown: bool = True) -> None:
        self._noun = noun
        self._total = total
        self._is_shown = is_shown and sys.stderr.isatty()
        self._width = 0

    def show(self, number: int, *, total: int | None = None) -> None:
        """total: for a total that becomes known only now."""
        if not self._is_shown:
            return
        self._total = total or self._total
        share = f" of {self._total:,} ({number * 100 // self._total} %)" if self._total else ""
        line = f"{number:,}{share} {self._noun}"
        sys.stderr.write(f"\r{line:<{self._width}}")
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        """Wipe the line."""
        if self._width:
            sys.stderr.write(f"\r{'':<{self._width}}\r")
            self._width = 0
