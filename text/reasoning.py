"""Separates a model's thoughts, which stand between marks such as <think> and </think>, from its answer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

ReasoningFormat = Literal["think", "mistral"]
MARKS: dict[ReasoningFormat, tuple[str, str]] = {"think": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}


def detect_reasoning(template_sources: Iterable[str]) -> ReasoningFormat | None:
    """A template that shows or drops thoughts belongs to a model that has some."""
    text = "\n".join(template_sources)
    if "[THINK]" in text:
        return "mistral"
    return "think" if "</think>" in text or "<think>" in text else None


def is_thinking_begun(reasoning: ReasoningFormat, prompt_end: str) -> bool:
    """Whether the prompt ends with the mark that opens the thoughts, as some templates write it."""
    return prompt_end.rstrip().endswith(MARKS[reasoning][0])


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of an answer's thoughts, apart from its text."""

    text: str


class ReasoningReader:
    """Text pieces in, thoughts and the answer's text out. Thoughts come first and once: later marks are text.

    White space around the marks is dropped. If the thoughts never end, there is no answer. The outcome does not depend
    on how the text is cut.
    """

    def __init__(self, reasoning: ReasoningFormat, *, is_begun: bool) -> None:
        """is_begun: the prompt opened the thoughts."""
        self._open, self._close = MARKS[reasoning]
        self._held = ""
        self._spaces = ""
        self._has_thought = False
        self._awaits_answer = False
        self.is_thinking = is_begun
        self.is_over = False
        """All that follows is the answer."""

    @property
    def num_held(self) -> int:
        return len(self._spaces) + len(self._held)

    def add(self, text: str) -> tuple[str, str]:
        """The thoughts and the answer's text that are certain now."""
        self._held += text
        thought = ""
        if not self.is_thinking and not self.is_over and not self._awaits_answer:
            self._find_open()
        if self.is_thinking:
            thought = self._think()
        if self._awaits_answer:
            self._held = self._held.lstrip()
            self.is_over = bool(self._held)
            self._awaits_answer = not self.is_over
        return thought, self._take_held() if self.is_over else ""

    def flush(self) -> tuple[str, str]:
        """The rest of both, at the end."""
        if self.is_thinking:
            return self._say(self._take_held()), ""
        return "", self._take_held()

    def _find_open(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._open):
            self.is_thinking, self._held = True, begun[len(self._open) :]
        elif not self._open.startswith(begun):
            self.is_over = True

    def _think(self) -> str:
        before, mark, after = self._held.partition(self._close)
        if mark:
            self._held, self._spaces, said = after, "", self._say(before).rstrip()
            self.is_thinking, self._awaits_answer = False, True
            return said
        start = _possible_start(self._held, self._close)
        said = self._say(self._held[:start])
        self._held = self._held[start:]
        return said

    def _say(self, text: str) -> str:
        """Trailing white space waits for more text; before the first thought, white space is dropped."""
        text = self._spaces + text if self._has_thought else text.lstrip()
        visible = text.rstrip()
        self._spaces = text[len(visible) :]
        self._has_thought = self._has_thought or bool(visible)
        return visible

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held


def _possible_start(text: str, mark: str) -> int:
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return len(text) - length
    return len(text)
