"""The usage that a client is shown: the sum of its rounds' billed usage."""

from typing import Any

from gateway.inference.usage_record import UsageRecord


class UsageSum:
    def __init__(self) -> None:
        self._prompt = self._completion = self._cached = 0

    def add(self, record: UsageRecord) -> None:
        """Add the usage of a closed round."""
        self._prompt += record.prompt_tokens
        self._completion += record.completion_tokens
        self._cached += record.cached_prompt_tokens

    def shown(self, last: Any) -> dict[str, Any]:
        """The usage of all rounds, in the format of the last round's."""
        return _merged(last, self._prompt, self._completion, self._cached)

    def so_far(self, current: dict[str, Any]) -> dict[str, Any]:
        """The usage of all closed rounds plus `current`, the reported usage of the round under way."""
        details = current.get("prompt_tokens_details") or {}
        return _merged(
            current,
            self._prompt + current.get("prompt_tokens", 0),
            self._completion + current.get("completion_tokens", 0),
            self._cached + (details.get("cached_tokens") or 0),
        )


def _merged(form: Any, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    form = form if isinstance(form, dict) else {}
    return {
        **form,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {**(form.get("prompt_tokens_details") or {}), "cached_tokens": cached_tokens},
    }
