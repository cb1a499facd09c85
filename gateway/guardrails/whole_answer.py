"""An answer that is not streamed: its texts, and what is left if some are blocked."""

from collections.abc import Collection
from typing import Any

import msgspec

from gateway.guardrails.held_stream import FILTERED, HeldText
from gateway.guardrails.texts import said_in_choice
from gateway.http.errors import UpstreamFailed

Json = dict[str, Any]


class WholeAnswer:
    """Raises UpstreamFailed if the body is not an answer, because nobody could check it."""

    def __init__(self, body: bytes) -> None:
        try:
            self._body: Json = msgspec.json.decode(body, type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise UpstreamFailed("the model's server sent what is no answer") from error
        choices = self._body.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise UpstreamFailed("the model's server sent what is no answer")
        self._choices: list[Json] = choices

    def texts(self) -> list[HeldText]:
        return [HeldText(i, text) for i, choice in enumerate(self._choices) for _, text in said_in_choice(choice)]

    def without(self, blocked: Collection[int]) -> bytes:
        choices = [_emptied(choice) if i in blocked else choice for i, choice in enumerate(self._choices)]
        return msgspec.json.encode({**self._body, "choices": choices})


def _emptied(choice: Json) -> Json:
    said: Json = {"text": ""} if "text" in choice else {"message": {"role": "assistant", "content": ""}}
    return {"index": choice.get("index", 0), **said, "logprobs": None, "finish_reason": FILTERED}
