"""From a body to a job for the engine: decode, check, render, tokenise. No I/O: it may run in a thread."""

import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from protocol.checks import check_request, decode_body, output_limit
from protocol.errors import ProtocolError
from protocol.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest, list_prompts
from text.bundle import TextTooLong
from worker.engine.randomness import choice_seed
from worker.engine.request import EngineRequest, SamplingParams
from worker.server.call import Call
from worker.server.defaults import SamplingDefaults
from worker.server.replica import Replica

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt and its n answers' requests. echo: its text, where the answers are to begin with it."""

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


def make_job(replica: Replica, body: bytes, call: Call, *, is_chat: bool) -> Job:
    """Raises ProtocolError."""
    arrived_at = time.monotonic()
    asked: GenerationRequest = decode_body(body, _CHAT) if is_chat else decode_body(body, _COMPLETION)
    check_request(asked)
    options = asked.stream_options
    return Job(
        request_id=call.request_id,
        prompts=_make_prompts(replica, asked, call),
        n=asked.n or 1,
        answer_id=("chatcmpl-" if is_chat else "cmpl-") + call.request_id,
        model=asked.model,
        created_at_s=int(time.time()),
        arrived_at=arrived_at,
        is_chat=is_chat,
        stops=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        has_tools=isinstance(asked, ChatCompletionRequest) and bool(asked.tools) and asked.tool_choice != "none",
        has_logprobs=_num_logprobs(asked) is not None,
        is_stream=bool(asked.stream),
        includes_usage=options is not None and options.include_usage,
        usage_in_each=options is not None and options.include_usage and options.continuous_usage_stats,
        wants_accounting=call.wants_accounting,
        tells_progress=call.wants_events and not asked.stream,
    )


def _make_prompts(replica: Replica, asked: GenerationRequest, call: Call) -> list[Prompt]:
    adapter = replica.adapter_for(asked.model)
    has_echo = isinstance(asked, CompletionRequest) and bool(asked.echo)
    prompts: list[Prompt] = []
    for sent, prompt_ids in _encode_prompts(replica, asked):
        sampling = _sampling(asked, replica.defaults, max_tokens=_max_tokens(replica, asked, len(prompt_ids)))
        requests = []
        for i in range(asked.n or 1):
            number = i + len(prompts) * (asked.n or 1)
            request = EngineRequest(
                request_id=f"{call.request_id}/{number}" if number else call.request_id,
                prompt_ids=prompt_ids,
                sampling=_sampling_of_choice(sampling, i, has_echo=has_echo),
                adapter=adapter,
                priority=call.priority(asked.priority),
                tenant=call.tenant,
                weight=call.weight,
                cache_salt=call.cache_salt(asked.cache_salt),
                deadline_at=call.deadline_at,
            )
            requests.append(request)
        echo = _text_of(replica, sent) if has_echo else None
        prompts.append(Prompt(requests=requests, echo=echo))
    return prompts


def _text_of(replica: Replica, sent: str | list[int]) -> str:
    return sent if isinstance(sent, str) else replica.bundle.tokenizer.decode(sent)


def _sampling_of_choice(sampling: SamplingParams, i: int, *, has_echo: bool) -> SamplingParams:
    """Of a prompt's i-th answer; the first one is told of the prompt's log-probabilities."""
    wants_prompt = has_echo and sampling.num_logprobs is not None and i == 0
    seed = None if sampling.seed is None else choice_seed(sampling.seed, i)
    return replace(sampling, seed=seed, prompt_logprobs=wants_prompt)


def _encode_prompts(replica: Replica, asked: GenerationRequest) -> list[tuple[str | list[int], list[int]]]:
    """Each prompt as it was sent (of a chat: nothing) and as token ids."""
    window = replica.engine.max_model_len
    try:
        if isinstance(asked, ChatCompletionRequest):
            tools = None if asked.tool_choice == "none" else asked.tools
            return [("", replica.bundle.encode_chat(asked.messages, tools, limit=window))]
        return [
            (sent, replica.bundle.encode_text(sent, limit=window) if isinstance(sent, str) else sent)
            for sent in list_prompts(asked)
        ]
    except TextTooLong as error:
        raise _too_long(asked, f"at least {error.least_tokens}", window) from error


def _max_tokens(replica: Replica, asked: GenerationRequest, num_prompt: int) -> int:
    """The client's bound, else the checkpoint's, else the rest of the window. Raises ProtocolError if there is none."""
    window = replica.engine.max_model_len
    limit = output_limit(asked)
    least = 1 if limit is None else min(limit, 1)
    if num_prompt + least > window:
        raise _too_long(asked, str(num_prompt), window)
    if limit is not None and num_prompt + limit > window:
        is_newer = isinstance(asked, ChatCompletionRequest) and asked.max_completion_tokens is not None
        raise ProtocolError(
            f"the prompt's {num_prompt} tokens and {limit} for the answer exceed the model's window of {window}; "
            f"ask for at most {window - num_prompt} or shorten the prompt",
            param="max_completion_tokens" if is_newer else "max_tokens",
            code="context_length_exceeded",
        )
    return limit if limit is not None else min(window - num_prompt, replica.defaults.max_new_tokens or window)


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
        logit_bias={int(token_id): bias for token_id, bias in (asked.logit_bias or {}).items()},
        seed=asked.seed,
        max_tokens=max_tokens,
        min_tokens=asked.min_tokens or 0,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        ignore_eos=bool(asked.ignore_eos),
        num_logprobs=_num_logprobs(asked),
    )


def _num_logprobs(asked: GenerationRequest) -> int | None:
    """How many of the likeliest to tell beside each token; None for no log-probabilities."""
    if isinstance(asked, CompletionRequest):
        return asked.logprobs
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value
