"""The answer of `POST /v1/route`: where a request would go now, and everything that the decision is based on."""

import msgspec


class CandidateLoad(msgspec.Struct, kw_only=True):
    """`turns` is the expected wait; one turn is the time that a prompt in the queue typically takes. Less is better."""

    worker_id: str
    turns: float
    num_waiting: int
    num_running: int
    is_home: bool
    """Whether the prompt's beginning is likely to be cached there."""
    is_adapter_resident: bool


class PoolStanding(msgspec.Struct, kw_only=True):
    """`standing` is `open`, `saturated`, `shedding` (closed to best-effort tiers) or `unavailable`."""

    pool: str
    standing: str


class RouteExplanation(msgspec.Struct, kw_only=True):
    """`pools` are those considered, the wanted one first; `candidates` are the chosen pool's replicas, best first."""

    model: str
    pool: str
    adapter: str | None
    route: str
    complexity: float
    threshold: float
    is_uncertain: bool
    needs_large: bool
    is_warm: bool
    """Whether the conversation went to the large pool lately and stays there."""
    pools: list[PoolStanding]
    candidates: list[CandidateLoad]
    prompt_tokens: int
    is_estimate: bool
    max_tokens: int
    max_cost_nanousd: int
    """The amount that a request would reserve."""
