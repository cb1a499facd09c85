"""Decodes and checks request bodies, with errors that name the field and say what to change."""

import re
from typing import TypeVar

import msgspec

from protocol.answer_format import wanted_format
from protocol.errors import ProtocolError
from protocol.messages import AssistantMessage, FunctionMessage, Message, RefusalPart, ToolMessage, content_text
from protocol.openai_fields import COMPLETIONS, FieldTable
from protocol.requests import (
    MAX_CHOICES,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
    list_prompts,
)
from protocol.tools import check_conversation, check_tools

MAX_STOP_STRINGS = 16
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MAX_LOGPROBS = 20
"""OpenAI's limit, and vLLM's default."""
T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]+)`")
_DIGITS = re.compile(r"[0-9]{1,10}")
"""More digits than any token id has. int() itself would fail on thousands of digits."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T], fields: FieldTable = COMPLETIONS) -> T:
    """Decode `body`; raises ProtocolError naming the field for malformed JSON, wrong types and unknown fields.

    fields: has the reasons for which fields of OpenAI's API are refused.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error), fields) from error
    except RecursionError as error:
        raise ProtocolError("the body is nested too deeply", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the body is not valid JSON in UTF-8: {error}", code="invalid_json") from error


def check_request(request: GenerationRequest, *, max_logprobs: int = MAX_LOGPROBS) -> None:
    """Raise ProtocolError for errors that types cannot express: contradictions, empty values, unsupported features.

    max_logprobs: the maximum number of log-probabilities per token that may be requested; -1: any number.
    """
    _check_logprobs(request, max_logprobs)
    if isinstance(request, ChatCompletionRequest):
        _check_chat(request)
    else:
        _check_completion(request)
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOP_STRINGS:
        raise ProtocolError(f"at most {MAX_STOP_STRINGS} stop strings, got {len(request.stop)}", param="stop")
    if request.stream_options is not None and not request.stream:
        raise ProtocolError("stream_options is only allowed with stream=true", param="stream_options")
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        raise refused_value("stream_options.include_obfuscation")
    limit = output_limit(request)
    if limit is not None and (request.min_tokens or 0) > limit:
        raise ProtocolError(f"min_tokens {request.min_tokens} exceeds max_tokens {limit}", param="min_tokens")
    if request.truncate_prompt_tokens == 0:
        raise ProtocolError(
            "truncate_prompt_tokens must be at least 1, or -1 for what the window holds", param="truncate_prompt_tokens"
        )
    wanted_format(request)
    for token_id in request.logit_bias or ():
        if not _DIGITS.fullmatch(token_id):
            raise ProtocolError(
                f"logit_bias maps token ids, as strings of digits, to numbers; got {token_id[:32]!r}",
                param="logit_bias",
            )


def output_limit(request: GenerationRequest) -> int | None:
    """The client's own limit on completion tokens, or None."""
    newer = request.max_completion_tokens if isinstance(request, ChatCompletionRequest) else None
    return newer if newer is not None else request.max_tokens


def check_template_fields(request: ChatCompletionRequest | TokenizeRequest) -> None:
    """Raises ProtocolError if `continue_final_message` has nothing to continue, or contradicts another field."""
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        raise ProtocolError(
            "continue_final_message leaves the last message open, add_generation_prompt begins a new one; send one",
            param="continue_final_message",
        )
    last = request.messages[-1] if request.messages else None
    if not isinstance(last, AssistantMessage) or not content_text(last.content):
        raise ProtocolError(
            "continue_final_message needs an assistant's message with text at the end of messages",
            param="continue_final_message",
        )


def refused_value(param: str, fields: FieldTable = COMPLETIONS) -> ProtocolError:
    return ProtocolError(f"{param}: {fields.partly[param]}", param=param, code="unsupported")


def field_error(message: str, fields: FieldTable) -> ProtocolError:
    """The error for a validation message of msgspec."""
    path_match = _PATH.search(message)
    path = path_match["path"] if path_match else ""
    text = _PATH.sub("", message)
    if "matching regex '^[^" in text and "x00]" in text:
        # The pattern of UserName.
        text = "Must not contain NUL (\\u0000)"
    name = _MISSING.search(text) or _UNKNOWN.search(text)
    param = ".".join(part for part in (path, name["name"] if name else "") if part)
    refused = fields.refusal_of(param, text)
    if refused is not None:
        return ProtocolError(refused[1], param=refused[0], code="unsupported")
    return ProtocolError(f"{param or 'body'}: {text[0].lower()}{text[1:]}", param=param or None)


def _check_logprobs(request: GenerationRequest, most: int) -> None:
    own = (
        ("top_logprobs", request.top_logprobs)
        if isinstance(request, ChatCompletionRequest)
        else ("logprobs", request.logprobs)
    )
    for name, number in (("prompt_logprobs", request.prompt_logprobs), own):
        if number is not None and most != -1 and not 0 <= number <= most:
            raise ProtocolError(f"{name} may be 0 to {most} here, got {number}", param=name)
    if request.prompt_logprobs is not None and request.stream:
        raise ProtocolError(
            "prompt_logprobs come with a whole answer only, not with stream=true", param="prompt_logprobs"
        )
    if request.logprob_token_ids is not None and (request.logprobs is None or request.logprobs is False):
        raise ProtocolError("logprob_token_ids is only allowed with logprobs", param="logprob_token_ids")


def _check_chat(request: ChatCompletionRequest) -> None:
    for i, message in enumerate(request.messages):
        if message.content and isinstance(message.content, str):
            # Fast path for nearly all messages.
            continue
        may_be_empty = isinstance(message, ToolMessage | FunctionMessage) or (
            isinstance(message, AssistantMessage) and bool(message.tool_calls or message.function_call)
        )
        if not may_be_empty and not content_text(message.content):
            raise ProtocolError("a message must have content", param=f"messages[{i}].content")
        _check_parts(message, i)
    if request.reasoning_effort not in (None, *REASONING_EFFORTS):
        raise ProtocolError(
            f"reasoning_effort may be {', '.join(REASONING_EFFORTS)}, got {request.reasoning_effort!r}",
            param="reasoning_effort",
        )
    check_conversation(request.messages)
    check_template_fields(request)
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise ProtocolError("max_tokens and max_completion_tokens differ; send one of them", param="max_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise ProtocolError("top_logprobs is only allowed with logprobs=true", param="top_logprobs")
    check_tools(request)


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
        raise refused_value("best_of")
    if request.suffix:
        raise refused_value("suffix")


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


def _check_parts(message: Message, i: int) -> None:
    if isinstance(message.content, list) and not isinstance(message, AssistantMessage):
        for j, part in enumerate(message.content):
            if isinstance(part, RefusalPart):
                place = f"messages[{i}].content[{j}]"
                raise ProtocolError(f"{place}: only an assistant refuses; send it as text", param=place)
