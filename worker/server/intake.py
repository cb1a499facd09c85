"""From a body to a job for the engine: decode, check, render, tokenise. No I/O: it may run in a thread."""

import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from protocol.checks import check_request, decode_body, output_limit
from protocol.errors import ProtocolError
from protocol.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest
from text.bundle import TextTooLong
from worker.engine.request import EngineRequest, SamplingParams
from worker.server.call import Call
from worker.server.defaults import SamplingDefaults
from worker.server.replica import Replica

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_DEFAULT_PRIORITY = 2
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Job:
    """arrived_at: `time.monotonic()`; stops: stop strings; has_tools: tool calls are looked for in the answer."""

    request: EngineRequest
    answer_id: str
    model: str
    created_at_s: int
    arrived_at: float
    is_chat: bool
    stops: tuple[str, ...]
    has_tools: bool
    is_stream: bool
    includes_usage: bool
    usage_in_each: bool
    wants_accounting: bool

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)


def make_job(replica: Replica, body: bytes, call: Call, *, is_chat: bool) -> Job:
    """Raises ProtocolError."""
    arrived_at = time.monotonic()
    asked: GenerationRequest = decode_body(body, _CHAT) if is_chat else decode_body(body, _COMPLETION)
    check_request(asked)
    adapter = replica.adapter_for(asked.model)
    prompt_ids = _prompt_ids(replica, asked)
    request = EngineRequest(
        request_id=call.request_id,
        prompt_ids=prompt_ids,
        sampling=_sampling(asked, replica.defaults, max_tokens=_max_tokens(replica, asked, len(prompt_ids))),
        adapter=adapter,
        priority=asked.priority if call.is_trusted and asked.priority is not None else _DEFAULT_PRIORITY,
        tenant=call.tenant,
        weight=call.weight,
        cache_salt=asked.cache_salt or "" if call.is_trusted else "",
        deadline_at=call.deadline_at,
    )
    options = asked.stream_options
    return Job(
        request=request,
        answer_id=("chatcmpl-" if is_chat else "cmpl-") + call.request_id,
        model=asked.model,
        created_at_s=int(time.time()),
        arrived_at=arrived_at,
        is_chat=is_chat,
        stops=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        has_tools=isinstance(asked, ChatCompletionRequest) and bool(asked.tools) and asked.tool_choice != "none",
        is_stream=bool(asked.stream),
        includes_usage=options is not None and options.include_usage,
        usage_in_each=options is not None and options.include_usage and options.continuous_usage_stats,
        wants_accounting=call.wants_accounting,
    )


def _prompt_ids(replica: Replica, asked: GenerationRequest) -> list[int]:
    window = replica.engine.max_model_len
    try:
        if isinstance(asked, ChatCompletionRequest):
            tools = None if asked.tool_choice == "none" else asked.tools
            return replica.bundle.encode_chat(asked.messages, tools, limit=window)
        if isinstance(asked.prompt, str):
            return replica.bundle.encode_text(asked.prompt, limit=window)
    except TextTooLong as error:
        raise _too_long(asked, f"at least {error.least_tokens}", window) from error
    return [token_id for token_id in asked.prompt if isinstance(token_id, int)]


def _max_tokens(replica: Replica, asked: GenerationRequest, num_prompt: int) -> int:
    """The client's bound, else the checkpoint's, else the rest of the window. Raises ProtocolError if there is none."""
    window = replica.engine.max_model_len
    if num_prompt >= window:
        raise _too_long(asked, str(num_prompt), window)
    limit = output_limit(asked)
    if limit is not None and num_prompt + limit > window:
        is_newer = isinstance(asked, ChatCompletionRequest) and asked.max_completion_tokens is not None
        raise ProtocolError(
            f"the prompt's {num_prompt} tokens and {limit} for the answer exceed the model's window of {window}; "
            f"ask for at most {window - num_prompt} or shorten the prompt",
            param="max_completion_tokens" if is_newer else "max_tokens",
            code="context_length_exceeded",
        )
    return limit or min(window - num_prompt, replica.defaults.max_new_tokens or window)


def _too_long(asked: GenerationRequest, num_prompt: str, window: int) -> ProtocolError:
    return ProtocolError(
        f"the prompt has {num_prompt} tokens, the model's window is {window} and an answer needs at least one; "
        "shorten it",
        param="messages" if isinstance(asked, ChatCompletionRequest) else "prompt",
        code="context_length_exceeded",
    )


def _sampling(asked: GenerationRequest, defaults: SamplingDefaults, *, max_tokens: int) -> SamplingParams:
    top_k = _given(asked.top_k, defaults.top_k)
    return SamplingParams(
        temperature=_given(asked.temperature, defaults.temperature),
        top_p=_given(asked.top_p, defaults.top_p),
        top_k=max(top_k, 0),
        min_p=_given(asked.min_p, defaults.min_p),
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        repetition_penalty=_given(asked.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(asked),
        seed=asked.seed,
        max_tokens=max_tokens,
        min_tokens=asked.min_tokens or 0,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        ignore_eos=bool(asked.ignore_eos),
    )


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _logit_bias(asked: GenerationRequest) -> dict[int, float]:
    try:
        return {int(token_id): bias for token_id, bias in (asked.logit_bias or {}).items()}
    except ValueError as error:
        raise ProtocolError(
            "logit_bias maps token ids, as strings of digits, to numbers", param="logit_bias"
        ) from error
