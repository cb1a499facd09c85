"""The limiter's commands as bytes. What stays the same for a tenant, a tier and a day is encoded once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal
from urllib.parse import quote
from uuid import UUID

from gateway.domain.limits import Limits
from gateway.limits.reservation import Admission
from gateway.limits.scripts import ADMIT, SETTLE, SHOW, TELL
from gateway.redis_client.resp import encode, encode_parts

Closing = Literal["actual", "refund", "sweep"]
Counting = Literal["always", "seeded", "never"]
_MAX_NAME = 100


def held_key(tenant_id: UUID | str, incarnation: str) -> str:
    return f"tiergate:{{{tenant_id}}}:held:{incarnation}"


def scope_key(tenant_id: UUID | str, part: str) -> str:
    return f"tiergate:{{{tenant_id}}}:limits:{part}"


def key_part(scope_name: str) -> str:
    """What stands for a scope in keys and records: its name, and of a long one, which clients may choose, a digest.

    The `#` stands in no quoted name."""
    quoted = quote(scope_name, safe=":")
    if len(quoted) <= _MAX_NAME:
        return quoted
    kind = scope_name.partition(":")[0]
    return f"{kind}:#{sha256(scope_name.encode()).hexdigest()}"


class Terms:
    """The commands for requests of one tenant with the same scopes, limits and day."""

    __slots__ = ("_admit", "_admit_seeded", "_scopes", "_settle", "_tell", "admission", "day")

    def __init__(self, admission: Admission, *, incarnation: str, window_us: int) -> None:
        self.admission = admission
        self.day = admission.now.toordinal()
        scopes = admission.scopes()
        self._scopes = scopes
        names = [key_part(scope.name) for scope in scopes]
        tenant_id = admission.tenant_id
        keys = (held_key(tenant_id, incarnation), *(scope_key(tenant_id, name) for name in names))
        record = " ".join(f"{name}={_flags(scope.limits)}" for name, scope in zip(names, scopes, strict=True))
        shared = (window_us, f"{admission.now:%Y%m%d}", f"{admission.now:%Y%m}", record)
        limits = [value for scope in scopes for value in _values(scope.limits)]
        self._admit = _begin(ADMIT, keys, (*shared, *limits), more=3)
        self._admit_seeded = _begin(ADMIT, keys, (*shared, *limits), more=5 + 2 * len(scopes))
        self._settle = _begin(SETTLE, keys, (), more=4)
        self._tell = _begin(TELL, keys, shared, more=6)

    def fits(self, admission: Admission) -> bool:
        mine = self.admission
        return (
            (mine.tier is admission.tier or _values(mine.tier) == _values(admission.tier))
            and self.day == admission.now.toordinal()
            and mine.inner_scopes == admission.inner_scopes
        )

    def admit(self, request_id: str, tokens: int, cost_nanousd: int) -> bytes:
        return self._admit + _figures(request_id, tokens, cost_nanousd)

    def admit_seeded(self, request_id: str, tokens: int, cost_nanousd: int, used: Sequence[tuple[int, int]]) -> bytes:
        """With what the ledger said of each scope: tokens of the day, cost of the month."""
        yesterday, last_month = _yesterday(self.admission.now), _last_month(self.admission.now)
        seeds = [value for pair in used for value in pair]
        return (
            self._admit_seeded
            + _figures(request_id, tokens, cost_nanousd)
            + encode_parts(f"{yesterday:%Y%m%d}", f"{last_month:%Y%m}", *seeds)
        )

    def settle(self, request_id: str, tokens: int, cost_nanousd: int, how: Closing) -> bytes:
        return self._settle + _figures(request_id, tokens, cost_nanousd) + encode_parts(how)

    def tell(
        self, request_id: str, tokens: int, cost_nanousd: int, *, age_s: float, is_live: bool, counting: Counting
    ) -> bytes:
        rest = encode_parts(int(age_s * 1e6), "live" if is_live else "done", counting)
        return self._tell + _figures(request_id, tokens, cost_nanousd) + rest

    def absorbs(self, other: "Terms") -> bool:
        """Do both count on the same scopes, day and month?"""
        return self is other or self._tell == other._tell


def show(admission: Admission, *, window_us: int) -> bytes:
    """How the scopes of a request that is never made stand."""
    keys = [scope_key(admission.tenant_id, key_part(scope.name)) for scope in admission.scopes()]
    return encode("EVALSHA", SHOW, len(keys), *keys, window_us, f"{admission.now:%Y%m%d}", f"{admission.now:%Y%m}")


def settle_foreign(tenant_id: str, incarnation: str, request_id: str, record: str, how: Closing) -> bytes:
    """A settlement for another gateway's request, from its record."""
    names = [part.rpartition("=")[0] for part in record.split(" ")[6:]]
    keys = (held_key(tenant_id, incarnation), *(scope_key(tenant_id, name) for name in names))
    return encode("EVALSHA", SETTLE, len(keys), *keys, request_id, 0, 0, how)


def _begin(digest: str, keys: Sequence[str], arguments: Sequence[str | int], *, more: int) -> bytes:
    """A command whose last `more` arguments are still to come."""
    parts = ("EVALSHA", digest, len(keys), *keys, *arguments)
    return b"*%d\r\n" % (len(parts) + more) + encode_parts(*parts)


def _figures(request_id: str, tokens: int, cost_nanousd: int) -> bytes:
    # Three calls of encode_parts in one line: this is the hot path.
    a, b = str(tokens), str(cost_nanousd)
    return f"${len(request_id)}\r\n{request_id}\r\n${len(a)}\r\n{a}\r\n${len(b)}\r\n{b}\r\n".encode()


def _values(limits: Limits) -> tuple[int | str, ...]:
    values = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.concurrency,
        limits.tokens_per_day,
        limits.budget_nanousd_per_month,
    )
    return tuple("" if value is None else value for value in values)


def _flags(limits: Limits) -> int:
    return (limits.tokens_per_day is not None) + 2 * (limits.budget_nanousd_per_month is not None)


def _yesterday(now: datetime) -> datetime:
    return now - timedelta(days=1)


def _last_month(now: datetime) -> datetime:
    return now.replace(day=1) - timedelta(days=1)
