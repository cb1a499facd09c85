"""Stop strings in a stream of text. The beginning of one is held back, so that a client never sees a part of it."""

from collections.abc import Sequence


class StopMatcher:
    """The answer ends before the stop string that is complete first. Among those that end together, the longest counts.

    The outcome does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        """is_included: the stop string is output, too."""
        self._is_included = is_included
        self._stops = tuple(stops)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """The text that may be output. Once `matched` is set, nothing more comes."""
        if not self._stops or self.matched is not None:
            return text if self.matched is None else ""
        text = self._held + text
        end = self._first_match(text)
        if end is not None:
            self._held = ""
            return text[:end]
        start = self._possible_start(text)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """The text that was held back, at the end of an answer that no stop string ended."""
        rest, self._held = self._held, ""
        return rest

    def _first_match(self, text: str) -> int | None:
        """Where the output ends: before the first stop string to be completed or, if is_included, after it."""
        starts = [(text.find(stop), stop) for stop in self._stops]
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if not found:
            return None
        end, start, self.matched = min(found)
        return end if self._is_included else start

    def _possible_start(self, text: str) -> int:
        """The first place from which the rest of the text is the beginning of a stop string."""
        for i, char in enumerate(text):
            if char in self._first_chars and any(stop.startswith(text[i:]) for stop in self._stops):
                return i
        return len(text)
