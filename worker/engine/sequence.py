"""A request on its way through the engine: its tokens, its blocks, how far it is computed."""

from dataclasses import dataclass, field
from typing import Any

from worker.engine.history import TokenHistory
from worker.engine.request import EngineRequest, TokenLogprobs
from worker.lora.residency import Version


@dataclass(eq=False, slots=True)
class Sequence:
    """stream_id: its unique name in this engine, `<request_id>#<number>`, since clients may use a request_id twice.

    token_ids: prompt, then output. Of these, num_computed have keys and values in block_ids, in order.

    block_digests[i] names the content of the i-th block that the tokens fill; the pool knows the first num_named.
    The first num_public of them hold a prompt that all tenants share; the others' names start from root_digest.
    The first num_outlived of block_ids were given up, since no future token sees what they held.
    num_charged tokens were counted as served or came from the cache, so that preemption charges nobody twice.
    version: of its adapter, which is in adapter_slot from when the sequence begins until it ends.
    Times are `time.monotonic()`. pooled: an embedding's sum so far, see `worker.engine.pooling`.
    """

    stream_id: str
    request: EngineRequest
    token_ids: list[int]
    num_prompt: int
    root_digest: bytes
    arrived_at: float
    adapter_slot: int = -1
    version: Version | None = None
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

    @property
    def max_len(self) -> int:
        """The most tokens that it may come to have."""
        return self.num_prompt + self.request.sampling.max_tokens

    @property
    def num_begun(self) -> int:
        """How many tokens it began with: the prompt's, and those that another replica made."""
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
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def queue_s(self) -> float:
        return 0.0 if self.started_at is None else self.started_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class Chunk:
    """num_tokens of a sequence to compute in this step, from its num_computed on."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the step yields the sequence's next token."""
        return self.num_tokens == self.sequence.num_uncomputed

    @property
    def is_decode(self) -> bool:
        """Whether it is the one token that was left, mostly the token sampled last. For use before `advance`."""
        return self.num_tokens == 1 and self.is_last
