"""A scope's current usage of its limits."""

import asyncio
from dataclasses import dataclass
from functools import partial

from gateway.limits.commands import show
from gateway.limits.local import Account, Entry, Reading, Told
from gateway.limits.reservation import period_flags
from gateway.redis_client import AWAY
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import Reply


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


def ask_usage(redis: Pipeline, entry: Entry, *, window_us: int) -> None:
    """Ask for the usage of day and month of the entry's scopes, so that there is something to decide by when Redis goes
    away. Does not wait: the accounts are told later."""
    sums = [
        (account.known_tokens, account.known_nanousd, account.closed_tokens, account.closed_nanousd)
        for account in entry.accounts
    ]
    try:
        call = redis.send(show(entry.admission, window_us=window_us), order=entry.accounts[0].order)
    except AWAY:
        return
    call.future.add_done_callback(partial(_note_usage, entry, sums))


def _note_usage(entry: Entry, sums: list[tuple[int, int, int, int]], done: "asyncio.Future[Reply]") -> None:
    if done.cancelled() or done.exception() is not None:
        return
    reply = done.result()
    assert isinstance(reply, bytes)
    scopes, parts = entry.admission.scopes(), reply.split(b";")
    for scope, account, part, (tokens, nanousd, *closed) in zip(scopes, entry.accounts, parts, sums, strict=True):
        usage = from_redis(part, None)
        reading = Reading(
            max(0, (usage.tokens_today or 0) - tokens), max(0, (usage.spent_this_month or 0) - nanousd), *closed
        )
        counted = (usage.tokens_today is not None) + 2 * (usage.spent_this_month is not None)
        account.told = Told(reading, entry.at, entry.terms.day, counted & period_flags(scope.limits))


def _sum(counted: int, seed: int, read: int | None) -> int | None:
    if seed >= 0:
        return counted + seed
    return None if read is None else counted + read
