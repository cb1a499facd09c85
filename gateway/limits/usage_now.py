"""A scope's current usage of its limits."""

from dataclasses import dataclass

from gateway.limits.local import Account, Reading


@dataclass(frozen=True, slots=True)
class UsageNow:
    num_requests: int
    num_tokens: int
    """Tokens in the last minute, including reserved ones."""
    num_live: int
    frees_s: float
    """Seconds until the first of the last minute's requests no longer counts."""
    reset_s: float
    """Seconds until none of them counts."""
    tokens_today: int | None
    spent_this_month: int | None
    """In 1e-9 dollars. None without such a limit, because it is then not counted; tokens_today likewise."""
    is_local: bool


def from_redis(part: bytes, reading: Reading | None) -> UsageNow:
    """Parse one scope's answer of show.lua. reading: used where Redis has no figure from the ledger."""
    requests, tokens, live, first_us, last_us, day, seed_day, month, seed_month = map(int, part.split())
    return UsageNow(
        num_requests=requests,
        num_tokens=tokens,
        num_live=live,
        frees_s=first_us / 1e6,
        reset_s=last_us / 1e6,
        tokens_today=_sum(day, seed_day, reading.tokens_today if reading else None),
        spent_this_month=_sum(month, seed_month, reading.spent_this_month if reading else None),
        is_local=False,
    )


def from_here(account: Account, reading: Reading | None, *, window_s: float, now: float) -> UsageNow:
    """The usage that this gateway itself knows, while Redis is away."""
    entries = [entry.at for entry in account.entries if not entry.is_void]
    tokens_today = spent_this_month = None
    if reading is not None:
        tokens_today = reading.tokens_today + account.live_tokens + account.closed_tokens - reading.closed_tokens
        spent_this_month = (
            reading.spent_this_month + account.live_nanousd + account.closed_nanousd - reading.closed_nanousd
        )
    return UsageNow(
        num_requests=account.num_requests,
        num_tokens=account.tokens,
        num_live=account.num_live,
        frees_s=entries[0] + window_s - now if entries else 0.0,
        reset_s=entries[-1] + window_s - now if entries else 0.0,
        tokens_today=tokens_today,
        spent_this_month=spent_this_month,
        is_local=True,
    )


def _sum(counted: int, seed: int, read: int | None) -> int | None:
    if seed >= 0:
        return counted + seed
    return None if read is None else counted + read
