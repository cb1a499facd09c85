"""A request on its way through the engine: its tokens, its blocks, and how far it is computed."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from worker.engine.history import TokenHistory
from worker.engine.request import EngineRequest, TokenLogprobs
from worker.guided.grammar import Matcher
from worker.lora.residency import Version


@dataclass(eq=False, slots=True)
class Sequence:
    """stream_id: a unique name in this engine, `<request_id>#<number>`, since clients may use a request_id twice.

    token_ids: prompt, then output. num_ahead: further tokens, 0 or 1, from a launched step, not known to the host yet.
    Of all these, num_computed have keys and values in block_ids, in order, or get them from launched steps.

    block_digests[i] names the content of the i-th block that the tokens fill; the pool knows the first num_named.
    The first num_public of them hold a prompt that all tenants share; the others' names start from root_digest.
    The first num_outlived of block_ids were given up, since no future token sees what they held.
    num_charged tokens were counted as served or came from the cache, so that preemption charges no tenant twice.
    version: the adapter's, which is in adapter_slot from when the sequence begins until it ends.
    Times are `time.monotonic()`. pooled: an embedding's sum so far, see `worker.engine.pooling`.
    matcher: the answer's position in its grammar, if it has one.
    """

    stream_id: str
    request: EngineRequest
    token_ids: list[int]
    num_prompt: int
    root_digest: bytes
    arrived_at: float
    adapter_slot: int = -1
    version: Version | None = None
    num_ahead: int = 0
    num_computed: int = 0
    num_cached: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_outlived: int = 0
    block_digests: list[bytes] = field(default_factory=list)
    num_named: int = 0
    num_public: int = 0
    num_charged: int = 0
    num_preempted: int = 0
    is_out_of_turn: bool = False
    order: int = 0
    started_at: float | None = None
    compute_s: float = 0.0
    pooled: Any = None
    history: TokenHistory | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    matcher: Matcher | None = None

    @property
    def max_len(self) -> int:
        """The most tokens that the sequence may have in the end."""
        return self.num_prompt + self.request.sampling.max_tokens

    @property
    def num_begun(self) -> int:
        """How many tokens the sequence began with: the prompt's, and those that another replica generated."""
        return self.num_prompt + len(self.request.given_ids)

    @property
    def is_running(self) -> bool:
        """Whether it has blocks; a waiting sequence has none."""
        return bool(self.block_ids)

    @property
    def owned_blocks(self) -> list[int]:
        return self.block_ids[self.num_outlived :]

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_tokens(self) -> int:
        """Includes tokens that are not known yet."""
        return len(self.token_ids) + self.num_ahead

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def next_index(self) -> int:
        """The index in the answer of the token that the next step yields."""
        return self.num_output + self.num_ahead

    @property
    def is_ending(self) -> bool:
        """Whether the token that is not known yet is the sequence's last one, whatever it is."""
        return self.num_ahead > 0 and self.next_index >= self.request.sampling.max_tokens

    @property
    def needs_host(self) -> bool:
        """Whether each of the sequence's steps must finish before the next one is launched, since the host's part in
        the next one depends on the last one's result."""
        return (
            self.request.pooling is not None
            or self.request.sampling.prompt_logprobs is not None
            or self.matcher is not None
            or any(len(word) > 1 for word in self.request.sampling.bad_words)
        )

    @property
    def must_not_end(self) -> bool:
        """Whether min_tokens forbids an end as the next token. False once the grammar is over: only an end is left."""
        is_early = self.next_index < self.request.sampling.min_tokens
        return is_early and not (self.matcher is not None and self.matcher.is_over)

    @property
    def is_extending(self) -> bool:
        """Whether the grammar forced several tokens at once, which are decoded in one step."""
        return self.num_uncomputed > 1 and self.num_computed >= self.num_begun

    @property
    def queue_s(self) -> float:
        return 0.0 if self.started_at is None else self.started_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class Chunk:
    """num_tokens tokens of a sequence to compute in this step, from its num_computed on."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the step yields the sequence's next token."""
        return self.num_tokens == self.sequence.num_uncomputed

    @property
    def yields(self) -> bool:
        """Whether the chunk yields a token of an answer."""
        return self.is_last and self.sequence.request.pooling is None

    @property
    def is_decode(self) -> bool:
        """Whether the chunk is the one token left, mostly the token sampled last. For use before `launch`."""
        return self.num_tokens == 1 and self.is_last


class Advance(NamedTuple):
    """The outcome of a launched chunk: the sequence is computed up to `end`, and yields a token or not."""

    sequence: Sequence
    end: int
    yields: bool
