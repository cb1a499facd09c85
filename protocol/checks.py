"""Decoding a request body into its type, with an error that names the field and says what to change."""

import re
from typing import TypeVar

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import AssistantMessage, content_text
from protocol.requests import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, GenerationRequest, list_prompts

MAX_STOP_STRINGS = 16
T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]+)`")
_DIGITS = re.compile(r"[0-9]{1,10}")
"""More than any token id has; int() itself fails on thousands."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode `body`; raises ProtocolError naming the field for malformed JSON, wrong types and unknown fields."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from error
    except RecursionError as error:
        raise ProtocolError("the body is nested too deeply", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the body is not valid JSON in UTF-8: {error}", code="invalid_json") from error


def check_request(request: GenerationRequest) -> None:
    """Raise ProtocolError on what types cannot say: contradictions, emptiness, features that are not served."""
    if isinstance(request, ChatCompletionRequest):
        _check_chat(request)
    else:
        _check_completion(request)
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOP_STRINGS:
        raise ProtocolError(f"at most {MAX_STOP_STRINGS} stop strings, got {len(request.stop)}", param="stop")
    if request.stream_options is not None and not request.stream:
        raise ProtocolError("stream_options is only allowed with stream=true", param="stream_options")
    limit = output_limit(request)
    if limit is not None and (request.min_tokens or 0) > limit:
        raise ProtocolError(f"min_tokens {request.min_tokens} exceeds max_tokens {limit}", param="min_tokens")
    for token_id in request.logit_bias or ():
        if not _DIGITS.fullmatch(token_id):
            raise ProtocolError(
                f"logit_bias maps token ids, as strings of digits, to numbers; got {token_id[:32]!r}",
                param="logit_bias",
            )


def output_limit(request: GenerationRequest) -> int | None:
    """The client's own bound on completion tokens, or None."""
    newer = request.max_completion_tokens if isinstance(request, ChatCompletionRequest) else None
    return newer if newer is not None else request.max_tokens


def _check_chat(request: ChatCompletionRequest) -> None:
    for i, message in enumerate(request.messages):
        has_calls = isinstance(message, AssistantMessage) and bool(message.tool_calls)
        if not has_calls and not content_text(message.content):
            raise ProtocolError("a message must have content", param=f"messages[{i}].content")
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise ProtocolError("max_tokens and max_completion_tokens differ; send one of them", param="max_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise ProtocolError("top_logprobs is only allowed with logprobs=true", param="top_logprobs")
    if request.response_format is not None and request.response_format.type != "text":
        raise ProtocolError(
            "response_format other than text is not supported yet", param="response_format", code="unsupported"
        )
    if request.tool_choice not in (None, "auto", "none"):
        raise ProtocolError(
            "tool_choice must be auto or none; forcing a call is not supported yet",
            param="tool_choice",
            code="unsupported",
        )


def _check_completion(request: CompletionRequest) -> None:
    _check_prompts(request)
    if request.max_tokens == 0 and not request.echo:
        raise ProtocolError("max_tokens must be at least 1, unless echo is set", param="max_tokens")
    n = request.n or 1
    num_prompts = len(list_prompts(request))
    if num_prompts * n > MAX_CHOICES:
        raise ProtocolError(
            f"{num_prompts} prompts with n={n} make {num_prompts * n} answers, at most {MAX_CHOICES} are given at once",
            param="n" if num_prompts <= MAX_CHOICES else "prompt",
        )
    if request.best_of is not None and request.best_of < n:
        raise ProtocolError(f"best_of {request.best_of} is less than n {n}", param="best_of")
    if request.best_of not in (None, n):
        raise ProtocolError(
            "best_of > n is not supported; ask for n answers with logprobs", param="best_of", code="unsupported"
        )
    if request.suffix:
        raise ProtocolError("suffix is not supported yet", param="suffix", code="unsupported")


def _check_prompts(request: CompletionRequest) -> None:
    if not request.prompt:
        raise ProtocolError("prompt must not be empty", param="prompt")
    if isinstance(request.prompt, str):
        return
    if len({type(part) for part in request.prompt}) > 1:
        raise ProtocolError("prompt must be all texts, all token ids or all lists of token ids", param="prompt")
    for i, part in enumerate(request.prompt):
        if part in ("", []):
            raise ProtocolError(f"prompt[{i}] must not be empty", param=f"prompt[{i}]")


def _field_error(message: str) -> ProtocolError:
    path_match = _PATH.search(message)
    path = path_match["path"] if path_match else ""
    text = _PATH.sub("", message)
    name = _MISSING.search(text) or _UNKNOWN.search(text)
    param = ".".join(part for part in (path, name["name"] if name else "") if part)
    return ProtocolError(f"{param or 'body'}: {text[0].lower()}{text[1:]}", param=param or None)
