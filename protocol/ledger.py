"""What a worker counted, as `GET /ledger` tells it: the other side of the usage events."""

import msgspec


class LedgerRow(msgspec.Struct, kw_only=True, frozen=True):
    """Of one incarnation of a worker, one tenant and the hour in which the requests reached the gateway, so far.

    completion_tokens: those that were told to the caller. discarded_tokens: made, and told to nobody.
    """

    worker_id: str
    hour_s: int
    """Unix time of its start."""
    tenant_id: str
    prompt_tokens: int
    completion_tokens: int
    discarded_tokens: int


class Ledger(msgspec.Struct, kw_only=True, frozen=True):
    rows: tuple[LedgerRow, ...]
