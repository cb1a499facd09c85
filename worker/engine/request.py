"""Requests to the engine and its answers. No torch here."""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from protocol.responses import FinishReason

if TYPE_CHECKING:
    from worker.guided.grammar import Grammar

Pooling = Literal["last", "mean"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. temperature 0 is greedy; top_k 0 (or -1) means all. The server looks for stop strings.

    stop_token_ids end the answer as the model's own eos ids do, and count as its last token; ignore_eos concerns only
    the eos ids. max_tokens 0: the prompt is computed and nothing is generated. num_logprobs: how many of the likeliest
    ids come with each token; None for no log-probabilities at all. logprob_token_ids: these ids instead.
    prompt_logprobs: the same for the prompt's tokens. allowed_token_ids: None for all. bad_words: token ids that must
    not follow each other in the answer.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    allowed_token_ids: "array[int] | None" = None
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """priority: 0..3, lower first; weight: the tenant's share within its class; deadline_at: `time.monotonic()`.

    request_id: the HTTP request's, with the answer's number where it has several. pooling: an embedding is wanted
    instead of an answer, from the last token's state or from the mean of all. given_ids: what the answer has already,
    made by another replica; they count for positions, penalties and limits, and only what follows them is output.
    grammar: what the answer must follow. With one the eos ids end the answer in any case, and min_tokens only as far as
    the grammar goes on.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    adapter: str | None = None
    priority: int = 2
    tenant: str = ""
    weight: float = 1.0
    cache_salt: str = ""
    deadline_at: float | None = None
    pooling: Pooling | None = None
    given_ids: tuple[int, ...] = ()
    grammar: "Grammar | None" = None


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms of the model's probabilities, before penalties, biases, temperature and truncation.

    top: ids with their logarithms, the likeliest first, or those that were asked for. rank: of a prompt's token, 1 for
    the likeliest.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int = 0


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of a request; the figures are final on the output that carries a finish_reason.

    compute_ms: wall time of the steps in which the request took part. embedding: a unit vector, little-endian float32,
    the only output of a request for an embedding. logprobs: one for each token, if wanted. prompt_logprobs: with the
    first output, if wanted; one for each token of the prompt but the first, and for each given one.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    embedding: bytes | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state at the end of its last step, and its totals since the start."""

    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_waiting: int
    max_model_len: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    adapters: tuple[str, ...]
    resident_adapters: tuple[str, ...]
    num_adapter_slots: int
    model_version: str
    last_step_at: float
    prompt_tokens_total: int
    cached_tokens_total: int
    completion_tokens_total: int
    discarded_tokens_total: int
    num_preemptions_total: int
    num_failed_steps_total: int
    num_nan_rows_total: int
