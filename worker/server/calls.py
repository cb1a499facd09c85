"""The tool calls of one answer: how to parse them, and whether they ended the answer."""

from dataclasses import dataclass

from text.tool_calls.formats import ToolFormat, make_parser, marks_of
from text.tool_calls.parts import CallBegun, CallEnded, Part


@dataclass(frozen=True, kw_only=True)
class CallReading:
    """names: of the tools offered. is_single: the answer ends with its first call.

    is_legacy: the client expects the call as `function_call`.
    """

    format: ToolFormat
    names: frozenset[str]
    is_single: bool
    is_legacy: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return marks_of(self.format)


class AnswerCalls:
    """reading: None if the answer is not searched for calls."""

    def __init__(self, reading: CallReading | None) -> None:
        self._parser = make_parser(reading.format, reading.names) if reading else None
        self._is_single = reading is not None and reading.is_single
        self._num_begun = self._num_ended = 0
        self.is_over = False
        """The answer has had the one call that it may contain."""

    @property
    def are_whole(self) -> bool:
        """There is at least one call, and every call that began has ended."""
        return 0 < self._num_begun == self._num_ended

    def add(self, text: str, opening: str, *, is_last: bool) -> list[Part]:
        """opening: text that precedes `text` but was not generated; it is not searched for calls."""
        if self._parser is None:
            return [opening + text] if opening or text else []
        given: list[Part] = [opening] if opening else []
        for part in self._parser.add(text) + (self._parser.flush() if is_last else []):
            if self._is_single and isinstance(part, CallBegun) and self._num_begun:
                # A second call begins after the first broke off.
                self.is_over = True
                break
            given.append(part)
            self._num_begun += isinstance(part, CallBegun)
            self._num_ended += isinstance(part, CallEnded)
            if self._is_single and self._num_ended:
                self.is_over = True
                break
        return given
