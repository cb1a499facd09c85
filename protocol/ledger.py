"""The tokens that a worker counted, as `GET /ledger` returns them: a second source to check usage events against."""

import msgspec


class LedgerRow(msgspec.Struct, kw_only=True, frozen=True):
    """Counts so far for one incarnation of a worker, one tenant and the hour in which the requests reached the gateway.

    completion_tokens: reported to the caller. discarded_tokens: generated, but never reported.
    """

    worker_id: str
    hour_s: int
    """Start of the hour, in Unix time."""
    tenant_id: str
    prompt_tokens: int
    completion_tokens: int
    discarded_tokens: int


class Ledger(msgspec.Struct, kw_only=True, frozen=True):
    rows: tuple[LedgerRow, ...]
