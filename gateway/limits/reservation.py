"""The argument and the result of `admit`."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from gateway.domain.catalog import TierTerms
from gateway.domain.limits import Limits, LimitScope
from gateway.limits.standing import Standing

if TYPE_CHECKING:
    from gateway.limits.local import Entry

TENANT = "tenant"
"""The name of the scope that every request has."""


class Admission(msgspec.Struct, frozen=True, gc=False):
    """A request that asks for admission, with at most `tokens` (prompt and answer) and a cost of at most
    `cost_nanousd`."""

    request_id: str
    tenant_id: UUID
    tier: TierTerms
    tokens: int
    cost_nanousd: int
    now: datetime
    inner_scopes: tuple[LimitScope, ...] = ()
    """Scopes beside the tenant's own, whose limits are the tier's. All must have room, or nothing is reserved."""

    def scopes(self) -> tuple[LimitScope, ...]:
        return (LimitScope(TENANT, self.tier), *self.inner_scopes)


class Reservation(msgspec.Struct, frozen=True):
    admission: Admission
    standing: Standing
    entry: "Entry"


def has_periods(limits: Limits) -> bool:
    """Whether there is a daily or monthly limit, for which the ledger is needed."""
    return limits.tokens_per_day is not None or limits.budget_nanousd_per_month is not None


def period_flags(limits: Limits) -> int:
    """1 for a daily limit, 2 for a monthly one, 3 for both."""
    return (limits.tokens_per_day is not None) + 2 * (limits.budget_nanousd_per_month is not None)


def seconds_to_midnight(now: datetime) -> float:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()


def seconds_to_next_month(now: datetime) -> float:
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return ((first + timedelta(days=32)).replace(day=1) - now).total_seconds()
