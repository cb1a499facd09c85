"""What `admit` asks for and gives, and the names of a tenant's keys in Redis."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from gateway.domain.catalog import TierTerms
from gateway.limits.standing import Standing

Outcome = Literal["actual", "refund", "late"]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that asks to pass: at most `tokens` (prompt and answer) at a cost of at most `cost_nanousd`."""

    request_id: str
    tenant_id: UUID
    tier: TierTerms
    tokens: int
    cost_nanousd: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Reservation:
    admission: Admission
    standing: Standing
    keys: tuple[str, ...] = field(repr=False)


def redis_keys(tenant_id: UUID, now: datetime) -> tuple[str, ...]:
    """window, tokens, leases, held, day, month; one hash slot for a tenant."""
    base = f"tiergate:{{{tenant_id}}}"
    names = ("window", "tokens", "leases", "held", f"day:{now:%Y%m%d}", f"month:{now:%Y%m}")
    return tuple(f"{base}:{name}" for name in names)


def seconds_to_midnight(now: datetime) -> float:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()


def seconds_to_next_month(now: datetime) -> float:
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return ((first + timedelta(days=32)).replace(day=1) - now).total_seconds()
