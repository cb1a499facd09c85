"""What `admit` asks for and gives."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from gateway.domain.catalog import TierTerms
from gateway.limits.standing import Standing

if TYPE_CHECKING:
    from gateway.limits.local import Entry

TENANT = "tenant"
"""The name of the scope that every request has."""


class Limits(Protocol):
    """None: no limit. A tier is one."""

    @property
    def requests_per_minute(self) -> int | None: ...
    @property
    def tokens_per_minute(self) -> int | None: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def tokens_per_day(self) -> int | None: ...
    @property
    def budget_nanousd_per_month(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_day: int | None = None
    budget_nanousd_per_month: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Whom limits bind within a tenant: `key:ID`, `user:ID`."""

    name: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that asks to pass: at most `tokens` (prompt and answer) at a cost of at most `cost_nanousd`."""

    request_id: str
    tenant_id: UUID
    tier: TierTerms
    tokens: int
    cost_nanousd: int
    now: datetime
    inner_scopes: tuple[Scope, ...] = ()
    """Beside the tenant's own, which the tier limits. All of them must have room, or nothing is reserved."""

    def scopes(self) -> tuple[Scope, ...]:
        return (Scope(TENANT, self.tier), *self.inner_scopes)


@dataclass(frozen=True, slots=True)
class Reservation:
    admission: Admission
    standing: Standing
    entry: "Entry"


def has_periods(limits: Limits) -> bool:
    """Does the ledger have a say?"""
    return limits.tokens_per_day is not None or limits.budget_nanousd_per_month is not None


def seconds_to_midnight(now: datetime) -> float:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()


def seconds_to_next_month(now: datetime) -> float:
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return ((first + timedelta(days=32)).replace(day=1) - now).total_seconds()
