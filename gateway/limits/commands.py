"""The limiter's commands as bytes. Parts that stay the same for a tenant, tier and day are encoded once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal
from urllib.parse import quote
from uuid import UUID

from gateway.domain.limits import Limits
from gateway.limits.reservation import Admission, has_periods, period_flags
from gateway.limits.scripts import BATCH, RAISE, RELEASE, SHOW, TELL
from gateway.redis_client.grouping import Group
from gateway.redis_client.resp import encode, encode_parts

Closing = Literal["actual", "refund"]
Releasing = Literal["actual", "refund", "sweep"]
Counting = Literal["always", "seeded", "never"]
_MAX_NAME = 100
STEP_PARTS = 4
"""The number of arguments of a step in a batch: its kind and three values."""
TELL_PARTS = 7
"""The number of arguments for a request that is told."""


def held_key(tenant_id: UUID | str, incarnation: str) -> str:
    return f"tiergate:{{{tenant_id}}}:held:{incarnation}"


def scope_key(tenant_id: UUID | str, part: str) -> str:
    return f"tiergate:{{{tenant_id}}}:limits:{part}"


def key_part(scope_name: str) -> str:
    """A scope's name in keys and records. A long name, since clients may choose it, is replaced by a digest.

    No quoted name contains the `#` that marks a digest."""
    quoted = quote(scope_name, safe=":")
    if len(quoted) <= _MAX_NAME:
        return quoted
    kind = scope_name.partition(":")[0]
    return f"{kind}:#{sha256(scope_name.encode()).hexdigest()}"


class Terms:
    """The commands for requests of one tenant with the same scopes, limits and day."""

    __slots__ = ("_tier", "admission", "day", "group", "has_periods", "tell_group")

    def __init__(self, admission: Admission, *, incarnation: str, window_us: int) -> None:
        self.admission = admission
        self._tier = admission.tier
        self.day = admission.now.toordinal()
        scopes = admission.scopes()
        self.has_periods = any(has_periods(scope.limits) for scope in scopes)
        names = [key_part(scope.name) for scope in scopes]
        tenant_id = admission.tenant_id
        keys = (held_key(tenant_id, incarnation), *(scope_key(tenant_id, name) for name in names))
        record = " ".join(f"{name}={period_flags(scope.limits)}" for name, scope in zip(names, scopes, strict=True))
        shared = (window_us, f"{admission.now:%Y%m%d}", f"{admission.now:%Y%m}", record)
        limits = [value for scope in scopes for value in _values(scope.limits)]
        parts = ("EVALSHA", BATCH, len(keys), *keys, *shared, *limits)
        self.group = Group(encode_parts(*parts), len(parts))
        """The batch command that `admit` and `close` are steps of."""
        parts = ("EVALSHA", TELL, len(keys), *keys, *shared)
        self.tell_group = Group(encode_parts(*parts), len(parts), is_apart=True)
        """The command that `tell` is a step of. Apart, so that it passes no `close` of the same request."""

    def fits(self, admission: Admission) -> bool:
        mine = self.admission
        if self.day != admission.now.toordinal() or mine.inner_scopes != admission.inner_scopes:
            return False
        if self._tier is not admission.tier:
            if _values(mine.tier) != _values(admission.tier):
                return False
            # The catalog was reloaded, and the limits are unchanged.
            self._tier = admission.tier
        return True

    def tell(
        self,
        request_id: str,
        tokens: int,
        cost_nanousd: int,
        *,
        age_s: float,
        ended_s: float | None,
        counting: Counting,
    ) -> bytes:
        """age_s, ended_s: how long ago it began and ended; None: it is under way."""
        state, ended_us = ("live", 0) if ended_s is None else ("done", int(ended_s * 1e6))
        figures = encode_parts(request_id, tokens, cost_nanousd)
        return figures + encode_parts(int(age_s * 1e6), state, counting, ended_us)

    def absorbs(self, other: "Terms") -> bool:
        """Whether both count on the same scopes, day and month."""
        return self is other or self.tell_group.begin == other.tell_group.begin


def admit(request_id: str, tokens: int, cost_nanousd: int) -> bytes:
    return _step("admit", request_id, tokens, cost_nanousd)


def admit_seeded(admission: Admission, used: Sequence[tuple[int, int]]) -> bytes:
    """used: for each scope, the tokens of the day and the cost of the month, as read from the ledger."""
    yesterday, last_month = _yesterday(admission.now), _last_month(admission.now)
    return b"".join(
        (
            _step("first", f"{yesterday:%Y%m%d}", f"{last_month:%Y%m}", 0),
            *(_step("seed", str(number), tokens, nanousd) for number, (tokens, nanousd) in enumerate(used, 1)),
            admit(admission.request_id, admission.tokens, admission.cost_nanousd),
        )
    )


def close(request_id: str, tokens: int, cost_nanousd: int, how: Closing) -> bytes:
    return _step(how, request_id, tokens, cost_nanousd)


def show(admission: Admission, *, window_us: int) -> bytes:
    """Show the usage of the scopes of `admission`, which stands for a request that is never made."""
    keys = [scope_key(admission.tenant_id, key_part(scope.name)) for scope in admission.scopes()]
    return encode("EVALSHA", SHOW, len(keys), *keys, window_us, f"{admission.now:%Y%m%d}", f"{admission.now:%Y%m}")


def raise_to(
    tenant_id: UUID, scope_name: str, day: datetime, *, tokens: int, cost_nanousd: int, age_s: float, is_trial: bool
) -> bytes:
    """Count at least `tokens` for the scope's day, and `cost_nanousd` for its month. age_s: how long ago these were
    read. is_trial: only say how much is missing."""
    key = scope_key(tenant_id, key_part(scope_name))
    figures = f"{day:%Y%m%d}", tokens, f"{day:%Y%m}", cost_nanousd
    return encode("EVALSHA", RAISE, 1, key, *figures, int(age_s * 1e6), "trial" if is_trial else "raise")


def release(
    tenant_id: str,
    incarnation: str,
    request_id: str,
    record: str,
    how: Releasing,
    *,
    tokens: int = 0,
    cost_nanousd: int = 0,
) -> bytes:
    """Close a request by its record in Redis, for a gateway that will not do so itself."""
    names = [part.rpartition("=")[0] for part in record.split(" ")[6:]]
    keys = (held_key(tenant_id, incarnation), *(scope_key(tenant_id, name) for name in names))
    return encode("EVALSHA", RELEASE, len(keys), *keys, request_id, how, tokens, cost_nanousd)


def _step(kind: str, a: str, b: int | str, c: int) -> bytes:
    """One step, of STEP_PARTS arguments."""
    # encode_parts inlined: this is the hot path.
    second, third = str(b), str(c)
    return (
        f"${len(kind)}\r\n{kind}\r\n${len(a)}\r\n{a}\r\n${len(second)}\r\n{second}\r\n${len(third)}\r\n{third}\r\n"
    ).encode()


def _values(limits: Limits) -> tuple[int | str, ...]:
    values = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.concurrency,
        limits.tokens_per_day,
        limits.budget_nanousd_per_month,
    )
    return tuple("" if value is None else value for value in values)


def _yesterday(now: datetime) -> datetime:
    return now - timedelta(days=1)


def _last_month(now: datetime) -> datetime:
    return now.replace(day=1) - timedelta(days=1)
