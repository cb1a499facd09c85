"""The usage event: one for each request that passed `admit`. The single definition."""

from datetime import datetime
from typing import Literal

import msgspec

SCHEMA_VERSION = 1
UsageStatus = Literal["ok", "error", "cancelled", "lost"]


class UsageEvent(msgspec.Struct, kw_only=True, frozen=True):
    """Deduplicated by (tenant_id, request_id). Money is integers of 1e-9 dollars; times are milliseconds.

    status: `ok` ended by itself; `cancelled` the client left; `error` we or the worker failed; `lost` the gateway
    died while it was open, tokens as far as known. `timestamp` is the request's arrival in UTC and never changes.
    """

    request_id: str
    client_request_id: str | None = None
    worker_id: str | None = None
    tenant_id: str
    key_id: str
    user_id: str | None = None
    session_id: str | None = None
    model_version: str
    """The model's id, and after an `@` the version of its files where the worker tells it."""
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
