"""The unsent part of a streamed answer, held back until guardrails have checked its text.

Each check sees, before the new text, up to a window of text that was released already, so that nothing hides at a seam.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from gateway.guardrails.texts import Path, said_in_choice
from gateway.http.errors import UpstreamFailed

Json = dict[str, Any]
FILTERED = "content_filter"
_HEAD = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


@dataclass
class _Track:
    """One text of a choice: its content, its reasoning or a call's arguments."""

    seen: str = ""
    """The end of the text that was checked already."""
    fresh: list[str] = field(default_factory=list)
    num_fresh: int = 0


@dataclass(frozen=True, slots=True)
class HeldText:
    choice: int
    text: str


class HeldStream:
    def __init__(self, *, window_chars: int, num_choices: int) -> None:
        self._window_chars = window_chars
        self._num_choices = num_choices
        self._chunks: list[Json] = []
        self._num_to_last_text = 0
        """Number of chunks up to the last text; later ones, such as its log-probabilities, wait for the next text."""
        self._tracks: dict[tuple[int, Path], _Track] = {}
        self._last_seen: dict[int, Json] = {}
        """By choice, its last chunk, as a model for the closing one."""
        self._ended: set[int] = set()
        self.blocked: set[int] = set()
        self.is_due = False
        """A window is full, so that a check is due."""
        self.has_text = False
        """There was some text, released or not."""

    @property
    def is_over(self) -> bool:
        """Some choice is blocked, and every other one has ended or is blocked, too."""
        return bool(self.blocked) and len(self._ended | self.blocked) >= self._num_choices

    def add(self, chunk: Json) -> None:
        """Raises UpstreamFailed if this is not a chunk, because nobody could check it."""
        choices = _choices(chunk)
        kept = [choice for choice in choices if _index(choice) not in self.blocked]
        if choices and not kept:
            return
        self._chunks.append({**chunk, "choices": kept})
        for choice in kept:
            index = _index(choice)
            self._last_seen[index] = chunk
            if choice.get("finish_reason"):
                self._ended.add(index)
            for path, text in said_in_choice(choice):
                track = self._tracks.setdefault((index, path), _Track())
                track.fresh.append(text)
                track.num_fresh += len(text)
                self._num_to_last_text, self.has_text = len(self._chunks), True
                self.is_due = self.is_due or track.num_fresh >= self._window_chars

    def texts(self) -> list[HeldText]:
        """The texts that are not checked yet, each preceded by the end of its checked part."""
        return [
            HeldText(index, track.seen + "".join(track.fresh))
            for (index, _), track in sorted(self._tracks.items(), key=lambda each: each[0][0])
            if track.fresh
        ]

    def release(self, blocked: Collection[int] = (), *, is_end: bool) -> list[Json]:
        """The chunks for the client, now that all of `texts()` was checked.

        blocked: choices that end here, without the held text. is_end: no more chunks will come.
        """
        num_released = len(self._chunks) if is_end else self._num_to_last_text
        released, self._chunks = self._chunks[:num_released], self._chunks[num_released:]
        for track in self._tracks.values():
            if track.fresh:
                track.seen = "".join([track.seen, *track.fresh])[-self._window_chars :]
                track.fresh, track.num_fresh = [], 0
        self._num_to_last_text, self.is_due = 0, False
        return self._cut(released, set(blocked)) if blocked else released

    def _cut(self, released: list[Json], blocked: set[int]) -> list[Json]:
        self.blocked |= blocked
        self._chunks = _without(self._chunks, blocked)
        kept = _without(released, blocked)
        closing = [_closing(self._last_seen[index], index) for index in sorted(blocked)]
        # Chunks without choices hold figures, which come last.
        with_choices = [chunk for chunk in kept if chunk["choices"]]
        return [*with_choices, *closing, *[chunk for chunk in kept if not chunk["choices"]]]


def form_of(chunk: Json) -> Json:
    """The fields that an empty chunk of the same answer has."""
    return {name: chunk[name] for name in _HEAD if name in chunk}


def _without(chunks: list[Json], blocked: set[int]) -> list[Json]:
    """The chunks with nothing of the blocked choices but their role."""
    kept = []
    for chunk in chunks:
        choices = [choice for choice in chunk["choices"] if _index(choice) not in blocked or _is_bare(choice)]
        if choices or not chunk["choices"]:
            kept.append({**chunk, "choices": choices})
    return kept


def _is_bare(choice: Json) -> bool:
    has_figures = any(choice.get(name) for name in ("finish_reason", "logprobs", "token_ids"))
    return not has_figures and not any(said_in_choice(choice))


def _closing(chunk: Json, index: int) -> Json:
    said: Json = {"text": ""} if "text" in chunk["choices"][0] else {"delta": {}}
    return {**form_of(chunk), "choices": [{"index": index, **said, "logprobs": None, "finish_reason": FILTERED}]}


def _choices(chunk: Json) -> list[Json]:
    choices = chunk.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise UpstreamFailed("the model's server sent what is no answer")
    return choices


def _index(choice: Json) -> int:
    index = choice.get("index", 0)
    if not isinstance(index, int):
        raise UpstreamFailed("the model's server sent what is no answer")
    return index
