"""The usage event, in its single definition: there is one for each request that passed `admit`.

Version 2 added `endpoint`, `error_code`, `error_message`, `num_attempts`, `steps_ms`, `decision` and `price_lines`; an
event of version 1 is read as one without them.
"""

from datetime import datetime
from typing import Literal

import msgspec

SCHEMA_VERSION = 2
READABLE_VERSIONS = frozenset({1, SCHEMA_VERSION})
MAX_ERROR_CHARS = 200
MAX_DECISION_BYTES = 2048
UsageStatus = Literal["ok", "error", "cancelled", "lost"]
PriceLineKind = Literal["input", "cached_input", "output", "adapter", "cached_answer", "minimum", "discount"]


class StepsMs(msgspec.Struct, kw_only=True, frozen=True):
    """When each step was over, in milliseconds since the request's arrival; None: not reached or not reported.

    queue: the worker began to compute. end: the event was closed.
    """

    authenticate: float | None = None
    admit: float | None = None
    queue: float | None = None
    first_token: float | None = None
    end: float | None = None


class PriceLine(msgspec.Struct, kw_only=True, frozen=True):
    """A part of the cost. amount_nanousd = quantity * unit_price_nanousd; parts that lower the cost are negative."""

    kind: PriceLineKind
    quantity: int
    unit_price_nanousd: int
    amount_nanousd: int


class UsageEvent(msgspec.Struct, kw_only=True, frozen=True):
    """Deduplicated by (tenant_id, request_id). Money is in integers of 1e-9 dollars; times are in milliseconds.

    status: `ok`: ended by itself; `cancelled`: the client left; `error`: we or the worker failed; `lost`: the gateway
    died while the request was open, with the tokens known until then. `timestamp` is the request's arrival in UTC and
    never changes.
    """

    request_id: str
    client_request_id: str | None = None
    worker_id: str | None = None
    tenant_id: str
    key_id: str
    user_id: str | None = None
    session_id: str | None = None
    model_version: str
    """The model's id and, after an `@`, the version of its files if the worker reports it."""
    pool: str
    requested_model: str
    route_reason: str
    complexity: float
    adapter_id: str | None = None
    prompt_tokens: int
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_ms: float | None = None
    total_latency_ms: float = 0.0
    queue_ms: float = 0.0
    worker_compute_ms: float = 0.0
    finish_reason: str | None = None
    status: UsageStatus
    tier: str
    price_version: str
    cost_nanousd: int = 0
    timestamp: datetime
    schema_version: int = SCHEMA_VERSION
    endpoint: str | None = None
    """The path that the client called."""
    error_code: str | None = None
    error_message: str | None = None
    """At most MAX_ERROR_CHARS, in our own words: never text from the client's prompt."""
    num_attempts: int = 0
    """Number of replicas that were tried."""
    steps_ms: StepsMs = StepsMs()
    decision: str | None = None
    """JSON, at most MAX_DECISION_BYTES: why the request was routed as it was."""
    price_lines: tuple[PriceLine, ...] = ()
    """Their amounts add up to `cost_nanousd`; empty if nothing is billed."""
    batch_id: str | None = None
    """The batch that the request was a line of."""
    cached_answer: bool = False
    """Whether the answer came from the answer cache and nothing was computed (docs/caching.md)."""
