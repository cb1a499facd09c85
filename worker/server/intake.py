"""From a body to a job for the engine: decode, check, render, tokenise. No I/O: it may run in a thread."""

import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from protocol.checks import check_request, decode_body, output_limit
from protocol.errors import ProtocolError
from protocol.ids import made_at_s
from protocol.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest, list_prompts
from text.bundle import TextTooLong
from worker.engine.randomness import choice_seed
from worker.engine.request import EngineRequest, SamplingParams
from worker.server.caller import Caller
from worker.server.defaults import SamplingDefaults
from worker.server.replica import Replica

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt and the requests of its n answers. echo: its text, if the answers begin with it."""

    requests: list[EngineRequest]
    echo: str | None

    @property
    def num_tokens(self) -> int:
        return len(self.requests[0].prompt_ids)


@dataclass(frozen=True, kw_only=True)
class Job:
    """n: answers to each prompt; their indexes go through the prompts in order.

    arrived_at: `time.monotonic()`; stops: stop strings; has_tools: tool calls are looked for in the answer.
    tells_progress: the answer is whole, and its token ids are told while it is made.
    """

    request_id: str
    tenant: str
    prompts: list[Prompt]
    n: int
    answer_id: str
    model: str
    created_at_s: int
    arrived_at: float
    is_chat: bool
    stops: tuple[str, ...]
    has_tools: bool
    has_logprobs: bool
    is_stream: bool
    includes_usage: bool
    usage_in_each: bool
    wants_accounting: bool
    tells_progress: bool

    @property
    def num_choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def num_prompt(self) -> int:
        """Tokens; each prompt once."""
        return sum(prompt.num_tokens for prompt in self.prompts)


def make_job(replica: Replica, body: bytes, caller: Caller, *, is_chat: bool) -> Job:
    """Raises ProtocolError."""
    arrived_at = time.monotonic()
    request: GenerationRequest = decode_body(body, _CHAT) if is_chat else decode_body(body, _COMPLETION)
    check_request(request)
    _check_given(request, caller)
    options = request.stream_options
    return Job(
        request_id=caller.request_id,
        tenant=caller.tenant,
        prompts=_make_prompts(replica, request, caller),
        n=request.n or 1,
        answer_id=("chatcmpl-" if is_chat else "cmpl-") + caller.request_id,
        model=caller.shown_model or request.model,
        # Not now, so that the chunks of a stream that goes on elsewhere agree.
        created_at_s=(made_at_s(caller.request_id) if caller.is_trusted else None) or int(time.time()),
        arrived_at=arrived_at,
        is_chat=is_chat,
        stops=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        has_tools=isinstance(request, ChatCompletionRequest) and bool(request.tools) and request.tool_choice != "none",
        has_logprobs=_num_logprobs(request) is not None,
        is_stream=bool(request.stream),
        includes_usage=options is not None and options.include_usage,
        usage_in_each=options is not None and options.include_usage and options.continuous_usage_stats,
        wants_accounting=caller.wants_accounting,
        tells_progress=caller.wants_events and not request.stream,
    )


def _make_prompts(replica: Replica, request: GenerationRequest, caller: Caller) -> list[Prompt]:
    adapter = replica.adapter_for(request.model)
    has_echo = isinstance(request, CompletionRequest) and bool(request.echo)
    prompts: list[Prompt] = []
    given = request.continue_from or []
    for sent, prompt_ids in _encode_prompts(replica, request):
        sampling = _sampling(request, replica.defaults, max_tokens=_max_tokens(replica, request, len(prompt_ids)))
        requests = []
        for i in range(request.n or 1):
            number = i + len(prompts) * (request.n or 1)
            engine_request = EngineRequest(
                request_id=f"{caller.request_id}/{number}" if number else caller.request_id,
                prompt_ids=prompt_ids,
                sampling=_sampling_of_choice(sampling, i, has_echo=has_echo, is_begun=bool(given)),
                adapter=adapter,
                priority=caller.priority(request.priority),
                tenant=caller.tenant,
                weight=caller.weight,
                cache_salt=caller.cache_salt(request.cache_salt),
                deadline_at=caller.deadline_at,
                given_ids=tuple(given[number]) if given else (),
            )
            requests.append(engine_request)
        echo = _text_of(replica, sent) if has_echo else None
        prompts.append(Prompt(requests=requests, echo=echo))
    return prompts


def _text_of(replica: Replica, sent: str | list[int]) -> str:
    return sent if isinstance(sent, str) else replica.bundle.tokenizer.decode(sent)


def _check_given(request: GenerationRequest, caller: Caller) -> None:
    given = request.continue_from
    if given is None:
        return
    if not caller.is_trusted:
        raise ProtocolError("continue_from needs the worker key", param="continue_from")
    num_prompts = len(list_prompts(request)) if isinstance(request, CompletionRequest) else 1
    num_choices = num_prompts * (request.n or 1)
    if len(given) != num_choices:
        raise ProtocolError(f"{len(given)} lists of ids for {num_choices} answers", param="continue_from")


def _sampling_of_choice(sampling: SamplingParams, i: int, *, has_echo: bool, is_begun: bool) -> SamplingParams:
    """Of a prompt's i-th answer; the first one is told of the prompt's log-probabilities, and each of its own begun
    part's."""
    wants_prompt = sampling.num_logprobs is not None and (is_begun or (has_echo and i == 0))
    seed = None if sampling.seed is None else choice_seed(sampling.seed, i)
    return replace(sampling, seed=seed, prompt_logprobs=wants_prompt)


def _encode_prompts(replica: Replica, request: GenerationRequest) -> list[tuple[str | list[int], list[int]]]:
    """Each prompt as it was sent (of a chat: nothing) and as token ids."""
    window = replica.engine.max_model_len
    try:
        if isinstance(request, ChatCompletionRequest):
            tools = None if request.tool_choice == "none" else request.tools
            return [("", replica.bundle.encode_chat(request.messages, tools, limit=window))]
        return [
            (sent, replica.bundle.encode_text(sent, limit=window) if isinstance(sent, str) else sent)
            for sent in list_prompts(request)
        ]
    except TextTooLong as error:
        raise _too_long(request, f"at least {error.least_tokens}", window) from error


def _max_tokens(replica: Replica, request: GenerationRequest, num_prompt: int) -> int:
    """The client's bound, else the checkpoint's, else the rest of the window. Raises ProtocolError if there is none."""
    window = replica.engine.max_model_len
    limit = output_limit(request)
    least = 1 if limit is None else min(limit, 1)
    if num_prompt + least > window:
        raise _too_long(request, str(num_prompt), window)
    if limit is not None and num_prompt + limit > window:
        is_newer = isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None
        raise ProtocolError(
            f"the prompt's {num_prompt} tokens and {limit} for the answer exceed the model's window of {window}; "
            f"ask for at most {window - num_prompt} or shorten the prompt",
            param="max_completion_tokens" if is_newer else "max_tokens",
            code="context_length_exceeded",
        )
    return limit if limit is not None else min(window - num_prompt, replica.defaults.max_new_tokens or window)


def _too_long(request: GenerationRequest, num_prompt: str, window: int) -> ProtocolError:
    return ProtocolError(
        f"the prompt has {num_prompt} tokens, the model's window is {window} and an answer needs at least one; "
        "shorten it",
        param="messages" if isinstance(request, ChatCompletionRequest) else "prompt",
        code="context_length_exceeded",
    )


def _sampling(request: GenerationRequest, defaults: SamplingDefaults, *, max_tokens: int) -> SamplingParams:
    top_k = _given(request.top_k, defaults.top_k)
    return SamplingParams(
        temperature=_given(request.temperature, defaults.temperature),
        top_p=_given(request.top_p, defaults.top_p),
        top_k=max(top_k, 0),
        min_p=_given(request.min_p, defaults.min_p),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias={int(token_id): bias for token_id, bias in (request.logit_bias or {}).items()},
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        num_logprobs=_num_logprobs(request),
    )


def _num_logprobs(request: GenerationRequest) -> int | None:
    """How many of the likeliest to tell beside each token; None for no log-probabilities."""
    if isinstance(request, CompletionRequest):
        return request.logprobs
    return (request.top_logprobs or 0) if request.logprobs else None


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value
