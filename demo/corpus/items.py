"""Corpus items, and the separation of training and held-out draws."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Message = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """One conversation. The last message is the assistant's and the only right answer; earlier messages are context."""

    skill: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt(self) -> list[Message]:
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The text of the right answer; empty for a tool call."""
        return str(self.messages[-1]["content"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Draw:
    """Random choices of one split. Training never sees the templates and entities of the held-out split."""

    def __init__(self, rng: random.Random, *, is_heldout: bool) -> None:
        self.rng = rng
        self.is_heldout = is_heldout

    def template(self, templates: Sequence[str]) -> str:
        """One of the phrasings; the last sixth (at least two) of every list is held out."""
        cut = len(templates) - max(2, len(templates) // 6)
        return self.rng.choice(templates[cut:] if self.is_heldout else templates[:cut])

    def owns(self, *entity: object) -> bool:
        """Whether this split may use the entity: one in ten belongs to the held-out split, by a stable hash."""
        key = "|".join(map(str, entity)).encode()
        return (zlib.crc32(key) % 10 == 0) == self.is_heldout

    def until_owned(self, make: Callable[[], T]) -> T:
        """Draw from `make` until the value belongs to this split."""
        while True:
            value = make()
            if self.owns(value):
                return value

    def entity(self, options: Sequence[T]) -> T:
        """One of the options that this split owns, or any option if it owns none, as happens with short lists."""
        return self.rng.choice([option for option in options if self.owns(option)] or options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


Skill = Callable[[Draw], Item]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}
