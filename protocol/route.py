"""What `POST /v1/route` answers: where a request would go now, and everything that decided it."""

import msgspec


class CandidateLoad(msgspec.Struct, kw_only=True):
    """turns: the expected waiting, in the time that a prompt ahead typically takes; the least is best."""

    worker_id: str
    turns: float
    num_waiting: int
    num_running: int
    is_home: bool
    """The prompt's beginning is likely to be cached there."""
    is_adapter_resident: bool


class PoolStanding(msgspec.Struct, kw_only=True):
    """standing: open, saturated, shedding (closed to best-effort tiers) or unavailable."""

    pool: str
    standing: str


class RouteExplanation(msgspec.Struct, kw_only=True):
    """pools: those that were looked at, the wanted one first. candidates: replicas of the chosen one, best first."""

    model: str
    pool: str
    adapter: str | None
    route: str
    complexity: float
    threshold: float
    is_uncertain: bool
    needs_large: bool
    is_warm: bool
    """The conversation went to the large pool lately and stays there."""
    pools: list[PoolStanding]
    candidates: list[CandidateLoad]
    prompt_tokens: int
    is_estimate: bool
    max_tokens: int
    max_cost_nanousd: int
    """What a request would reserve."""
