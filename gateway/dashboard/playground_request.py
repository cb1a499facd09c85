"""From the playground's form to the bodies of chat completions, one for each model that is asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.dashboard.typed import Typed
from gateway.http.errors import InvalidRequest

COLUMNS = ("model_1", "model_2", "model_3")
"""The fields that name the models to ask, one per column."""
_NUMBERS = (("temperature", float), ("top_p", float), ("max_tokens", int), ("seed", int))


class Turn(msgspec.Struct, frozen=True):
    """The question, and the answers by column; an answer that failed is empty."""

    user: str
    answers: list[str]


_TURNS = msgspec.json.Decoder(list[Turn])


@dataclass(frozen=True)
class Asked:
    models: Sequence[tuple[int, str]]
    """(column, name)"""
    system: str
    prompt: str
    history: Sequence[Turn]
    parameters: dict[str, float | int]

    def body(self, column: int) -> dict[str, Any]:
        """The whole body, without `stream`. A column gets only its own answers, and no turn that it failed."""
        model = dict(self.models)[column]
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.history:
            if column < len(turn.answers) and turn.answers[column]:
                messages.append({"role": "user", "content": turn.user})
                messages.append({"role": "assistant", "content": turn.answers[column]})
        messages.append({"role": "user", "content": self.prompt})
        return {"model": model, "messages": messages, **self.parameters}


def read_asked(typed: Typed) -> Asked:
    """Raises InvalidRequest, naming the field."""
    models = [(column, name) for column, field in enumerate(COLUMNS) if (name := typed.text(field))]
    if not models:
        raise InvalidRequest("choose a model", param=COLUMNS[0])
    prompt = typed.text("prompt")
    if not prompt:
        raise InvalidRequest("write what to ask", param="prompt")
    parameters = {name: _number(typed, name, kind) for name, kind in _NUMBERS if typed.text(name)}
    return Asked(models, typed.text("system"), prompt, read_history(typed), parameters)


def read_history(typed: Typed) -> list[Turn]:
    text = typed.text("history")
    try:
        return _TURNS.decode(text) if text else []
    except msgspec.MsgspecError as error:
        raise InvalidRequest("the conversation so far cannot be read; start over", param="history") from error


def _number(typed: Typed, name: str, kind: type[float] | type[int]) -> float | int:
    try:
        number = kind(typed.text(name))
        if math.isfinite(number):
            return number
    except (ValueError, OverflowError):
        pass
    example = "a whole number, such as 100" if kind is int else "a number, such as 0.7"
    raise InvalidRequest(f"write {example}", param=name)
