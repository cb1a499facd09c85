"""Turns a body into a job for the engine: decode, check, render, tokenise. No I/O, so it may run in a thread."""

import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.checks import check_request, decode_body, output_limit
from protocol.context_window import CONTEXT_LENGTH_EXCEEDED, answer_too_long, prompt_too_long
from protocol.errors import ProtocolError
from protocol.ids import made_at_s
from protocol.legacy import is_legacy, modern
from protocol.messages import AssistantMessage, content_text
from protocol.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    UsedServiceTier,
    list_prompts,
    used_service_tier,
)
from protocol.tools import offer_of
from text.bundle import TextTooLong
from text.prompts import encode_prompts, kept_tokens
from text.reasoning import ReasoningFormat
from text.tool_calls.grammar import written_format
from worker.engine.randomness import choice_seed
from worker.engine.request import EngineRequest, SamplingParams
from worker.guided import Grammar
from worker.server.caller import Caller
from worker.server.calls import CallReading
from worker.server.display import Display, at_most, read_display
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
    """n: answers per prompt; choice indexes run through the prompts in order.

    arrived_at: `time.monotonic()`; stops: stop strings; calls: how to parse tool calls in the answer, None for not.
    reasoning: how thoughts are marked. goes_on: a chat's answer continues its last message.
    tells_progress: the answer is not streamed, but its token ids are reported while it is generated.
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
    goes_on: bool
    display: Display
    stops: tuple[str, ...]
    calls: CallReading | None
    reasoning: ReasoningFormat | None
    has_logprobs: bool
    is_stream: bool
    service_tier: UsedServiceTier | msgspec.UnsetType = msgspec.UNSET
    includes_usage: bool
    usage_in_each: bool
    wants_accounting: bool
    tells_progress: bool

    def prompt_ids_of(self, choice: int) -> list[int]:
        return self.prompts[choice // self.n].requests[0].prompt_ids

    @property
    def num_choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def num_prompt(self) -> int:
        """Prompt tokens, each prompt counted once."""
        return sum(prompt.num_tokens for prompt in self.prompts)


def read_request(replica: Replica, body: bytes, caller: Caller, *, is_chat: bool) -> GenerationRequest:
    """Raises ProtocolError."""
    request: GenerationRequest = decode_body(body, _CHAT) if is_chat else decode_body(body, _COMPLETION)
    check_request(request, max_logprobs=replica.max_logprobs)
    if isinstance(request, ChatCompletionRequest):
        request = modern(request)
    _check_given(request, caller)
    return request


def make_job(
    replica: Replica, request: GenerationRequest, caller: Caller, *, arrived_at: float, grammar: Grammar | None
) -> Job:
    """grammar: None if the answers may be any text. Raises ProtocolError."""
    is_chat = isinstance(request, ChatCompletionRequest)
    options = request.stream_options
    return Job(
        request_id=caller.request_id,
        tenant=caller.tenant,
        prompts=_make_prompts(replica, request, caller, grammar),
        n=request.n or 1,
        answer_id=("chatcmpl-" if is_chat else "cmpl-") + caller.request_id,
        model=caller.shown_model or request.model,
        # Not the current time, so that the chunks of a stream that continues on another replica agree.
        created_at_s=(made_at_s(caller.request_id) if caller.is_trusted else None) or int(time.time()),
        arrived_at=arrived_at,
        is_chat=is_chat,
        goes_on=isinstance(request, ChatCompletionRequest) and bool(request.continue_final_message),
        display=read_display(request, vocab_size=replica.engine.vocab_size),
        stops=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        calls=_call_reading(replica, request),
        reasoning=replica.reasoning if is_chat else None,
        has_logprobs=_num_logprobs(request, replica.engine.vocab_size) is not None,
        is_stream=bool(request.stream),
        service_tier=_service_tier(request, caller),
        includes_usage=options is not None and options.include_usage,
        usage_in_each=options is not None and options.include_usage and options.continuous_usage_stats,
        wants_accounting=caller.wants_accounting,
        tells_progress=caller.wants_events and not request.stream,
    )


def _service_tier(request: GenerationRequest, caller: Caller) -> UsedServiceTier | msgspec.UnsetType:
    """The tier that the answer reports, if the request names one. Only the gateway grants tiers."""
    used = used_service_tier(request)
    return msgspec.UNSET if used is None else used if caller.is_trusted else "default"


def _call_reading(replica: Replica, request: GenerationRequest) -> CallReading | None:
    offer = offer_of(request) if isinstance(request, ChatCompletionRequest) else None
    if offer is None:
        return None
    return CallReading(
        format=written_format(replica.tool_format, offer),
        names=frozenset(tool.function.name for tool in offer.tools),
        is_single=offer.is_single,
        is_legacy=isinstance(request, ChatCompletionRequest) and is_legacy(request),
    )


def _make_prompts(
    replica: Replica, request: GenerationRequest, caller: Caller, grammar: Grammar | None
) -> list[Prompt]:
    adapter = replica.adapter_for(request.model)
    has_echo = isinstance(request, CompletionRequest) and bool(request.echo)
    prompts: list[Prompt] = []
    given = request.continue_from or []
    encoded = _encode_prompts(replica, request)
    for prompt_ids, echo in zip(encoded, _echoes(replica, request, encoded), strict=True):
        sampling = _sampling(replica, request, max_tokens=_max_tokens(replica, request, len(prompt_ids)))
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
                grammar=grammar,
            )
            requests.append(engine_request)
        prompts.append(Prompt(requests=requests, echo=echo))
    return prompts


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
    """Parameters of a prompt's i-th answer. The first answer gets the prompt's log-probabilities, and each answer those
    of its given ids."""
    own = sampling.num_logprobs
    shown = sampling.prompt_logprobs if i == 0 or (is_begun and own is not None) else None
    if own is not None and (is_begun or (has_echo and i == 0)):
        shown = max(shown or 0, own)
    seed = None if sampling.seed is None else choice_seed(sampling.seed, i)
    return replace(sampling, seed=seed, prompt_logprobs=shown)


def _encode_prompts(replica: Replica, request: GenerationRequest) -> list[list[int]]:
    window, limit = replica.engine.max_model_len, output_limit(request)
    kept = kept_tokens(request, window=window, num_output=1 if limit is None else limit)
    try:
        return encode_prompts(replica.bundle, request, kept=kept, limit=window)
    except TextTooLong as error:
        raise _too_long(request, f"at least {error.least_tokens}", window) from error


def _echoes(replica: Replica, request: GenerationRequest, prompts: list[list[int]]) -> list[str | None]:
    """The text that the answers to each prompt begin with; None for no echo."""
    if not request.echo:
        return [None] * len(prompts)
    if isinstance(request, ChatCompletionRequest):
        last = request.messages[-1]
        return [content_text(last.content) if isinstance(last, AssistantMessage) else None]
    is_cut = request.truncate_prompt_tokens is not None
    return [
        sent if isinstance(sent, str) and not is_cut else replica.bundle.tokenizer.decode(prompt_ids)
        for sent, prompt_ids in zip(list_prompts(request), prompts, strict=True)
    ]


def _max_tokens(replica: Replica, request: GenerationRequest, num_prompt: int) -> int:
    """The client's limit, else the checkpoint's, else the rest of the window. Raises ProtocolError if nothing fits."""
    window = replica.engine.max_model_len
    limit = output_limit(request)
    least = 1 if limit is None else min(limit, 1)
    if num_prompt + least > window:
        raise _too_long(request, str(num_prompt), window)
    if limit is not None and num_prompt + limit > window:
        is_newer = isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None
        raise ProtocolError(
            answer_too_long(window, num_prompt, limit, _place(request)),
            param="max_completion_tokens" if is_newer else "max_tokens",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    return limit if limit is not None else min(window - num_prompt, replica.defaults.max_new_tokens or window)


def _too_long(request: GenerationRequest, num_prompt: str, window: int) -> ProtocolError:
    place = _place(request)
    return ProtocolError(prompt_too_long(window, num_prompt, place), param=place, code=CONTEXT_LENGTH_EXCEEDED)


def _place(request: GenerationRequest) -> Literal["messages", "prompt"]:
    return "messages" if isinstance(request, ChatCompletionRequest) else "prompt"


def _sampling(replica: Replica, request: GenerationRequest, *, max_tokens: int) -> SamplingParams:
    defaults, vocab_size = replica.defaults, replica.engine.vocab_size
    top_k = _given(request.top_k, defaults.top_k)
    allowed = request.allowed_token_ids
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
        num_logprobs=_num_logprobs(request, vocab_size),
        logprob_token_ids=tuple(request.logprob_token_ids or ()),
        prompt_logprobs=None if request.prompt_logprobs is None else at_most(request.prompt_logprobs, vocab_size),
        allowed_token_ids=None if allowed is None else array("q", sorted(set(allowed))),
        bad_words=_bad_words(replica, request.bad_words or ()),
    )


def _bad_words(replica: Replica, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Each word's ids, both at a text's start and after a space. Raises ProtocolError for a word without tokens."""
    found: dict[tuple[int, ...], None] = {}
    for i, word in enumerate(words):
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tuple(replica.bundle.tokenizer.encode(text, add_special_tokens=False)) if text.strip() else ()
            if not ids:
                raise ProtocolError(f"bad_words[{i}] has no tokens: {word!r}", param="bad_words")
            found[ids] = None
    return tuple(found)


def _num_logprobs(request: GenerationRequest, vocab_size: int) -> int | None:
    """How many of the likeliest tokens to report beside each token; None for no log-probabilities."""
    if isinstance(request, CompletionRequest):
        return None if request.logprobs is None else at_most(request.logprobs, vocab_size)
    return at_most(request.top_logprobs or 0, vocab_size) if request.logprobs else None


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value
