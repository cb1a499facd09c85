"""What a client is told whose request is larger than the window: OpenAI's words, by which clients know this error."""

from typing import Literal

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
_MARK = f"({CONTEXT_LENGTH_EXCEEDED})"
"""LangChain looks for the code in the message, where OpenAI's client for Python no longer puts it."""
Place = Literal["messages", "prompt", "input"]


def prompt_too_long(window: int, prompt_tokens: int | str, place: Place) -> str:
    """prompt_tokens: a number, or at least how many there are."""
    asked = f"your {place} resulted in {prompt_tokens} tokens"
    return f"{_beginning(window)}, {asked}. Please reduce the length of the {place}. {_MARK}"


def answer_too_long(window: int, prompt_tokens: int, max_tokens: int, place: Place) -> str:
    return (
        f"{_beginning(window)}, you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {place}, "
        f"{max_tokens} in the completion). Please reduce the length of the {place} or completion. {_MARK}"
    )


def _beginning(window: int) -> str:
    return f"This model's maximum context length is {window} tokens. However"
