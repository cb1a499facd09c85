"""Finds the texts in requests and answers that a guardrail must check."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.http.errors import InvalidRequest
from protocol.embeddings import EmbeddingsRequest, inputs_of
from protocol.messages import AssistantMessage, Message, content_text
from protocol.requests import ChatCompletionRequest, CompletionRequest, list_prompts

Path = tuple[str | int, ...]
_NO_TEXT = frozenset({"role", "id", "type", "index"})
_SAID_IN = ("delta", "message", "text")
"""The fields of a choice that hold text. Log-probabilities only repeat it."""


def texts_of(request: ChatCompletionRequest | CompletionRequest | EmbeddingsRequest) -> list[str]:
    """Everything that goes into the prompt, one text per message. Raises InvalidRequest for token ids."""
    match request:
        case ChatCompletionRequest():
            texts = [_text_of(message) for message in request.messages]
            texts += [_json(part) for part in (request.tools, request.functions, request.chat_template_kwargs) if part]
        case CompletionRequest():
            texts = [*_only_text(list_prompts(request), "prompt"), request.suffix or ""]
        case EmbeddingsRequest():
            texts = _only_text(inputs_of(request), "input")
    return [text for text in texts if text]


def input_field(request: ChatCompletionRequest | CompletionRequest | EmbeddingsRequest) -> str:
    match request:
        case ChatCompletionRequest():
            return "messages"
        case CompletionRequest():
            return "prompt"
        case EmbeddingsRequest():
            return "input"


def said_in_choice(choice: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Each text in a choice of an answer or of a chunk, with its path; also in fields that we do not know."""
    for name in _SAID_IN:
        yield from _strings(choice.get(name), (name,))


def _strings(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        if value:
            yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _NO_TEXT:
                yield from _strings(inner, (*path, name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            # A stream's tool calls come in pieces whose `index` tells which call they belong to.
            place = inner.get("index", i) if isinstance(inner, dict) else i
            yield from _strings(inner, (*path, place))


def _text_of(message: Message) -> str:
    parts = [getattr(message, "name", None), content_text(message.content)]
    if isinstance(message, AssistantMessage):
        parts += [message.refusal, message.reasoning_content, message.reasoning]
        calls = [call.function for call in message.tool_calls or ()]
        for call in [*calls, *([message.function_call] if message.function_call else ())]:
            parts += [call.name, call.arguments]
    return "\n".join([part for part in parts if part])


def _only_text(prompts: "list[str] | list[list[int]] | list[str | list[int]]", param: str) -> list[str]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise InvalidRequest(f"{param}: send text; your guardrails cannot check token ids", param=param)
    return texts


def _json(part: Any) -> str:
    return msgspec.json.encode(part).decode()
