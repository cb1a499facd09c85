"""Error messages for requests that exceed the context window: in OpenAI's wording, by which clients recognise them."""

from typing import Literal

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
_MARK = f"({CONTEXT_LENGTH_EXCEEDED})"
"""LangChain looks for the code in the message, but OpenAI's Python client no longer puts it there."""
Place = Literal["messages", "prompt", "input"]


def prompt_too_long(window: int, prompt_tokens: int | str, place: Place) -> str:
    """prompt_tokens: the number, or a text such as `at least N`."""
    asked = f"your {place} resulted in {prompt_tokens} tokens"
    return f"{_beginning(window)}, {asked}. Please reduce the length of the {place}. {_MARK}"


def answer_too_long(window: int, prompt_tokens: int, max_tokens: int, place: Place) -> str:
    return (
        f"{_beginning(window)}, you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {place}, "
        f"{max_tokens} in the completion). Please reduce the length of the {place} or completion. {_MARK}"
    )


def _beginning(window: int) -> str:
    return f"This model's maximum context length is {window} tokens. However"
