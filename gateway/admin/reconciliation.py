"""`GET /admin/v1/reconciliation`: do the counts of gateways, ClickHouse and workers add up?"""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gateway.billing.reconciliation import EventCounts, TokenCounts
from gateway.clock import utc_now
from gateway.metering.windows import parse_window
from gateway.services import PlatformDep, ServicesDep

router = APIRouter(prefix="/reconciliation", tags=["usage"])


class EventRow(BaseModel):
    """`num_missing` counts requests that gateways counted and that have no row in ClickHouse; a negative number counts
    rows that no gateway counted. Events of a tenant that does not exist are on no invoice and count as unreconciled."""

    tenant_id: str
    hour: datetime
    num_admitted: int
    num_closed: int
    num_events: int
    num_rolled_up: int
    num_missing: int
    is_settled: bool
    is_known_tenant: bool


class TokenRow(BaseModel):
    """`num_missing` counts tokens that the worker counted and that are in no event; a negative number counts tokens of
    events that the worker did not count. `is_difference` tells whether it exceeds `tolerance`, the number of tokens
    that interrupted answers may explain."""

    worker_id: str
    tenant_id: str
    hour: datetime
    counted_tokens: int
    billed_tokens: int
    num_missing: int
    tolerance: int
    is_difference: bool
    is_settled: bool


class ReconciliationAnswer(BaseModel):
    """The totals cover settled hours only: those that ended at least 15 minutes ago."""

    start: datetime
    end: datetime
    num_unreconciled_events: int
    num_unreconciled_tokens: int
    events: list[EventRow]
    tokens: list[TokenRow]
    silent_workers: list[str]
    """Workers that are named in events but have no ledger."""


@router.get("")
async def reconciliation(
    _admin: PlatformDep,
    services: ServicesDep,
    start: Annotated[str | None, Query(alias="from", description="default: 24 hours before `to`")] = None,
    end: Annotated[str | None, Query(alias="to", description="default: now")] = None,
    all_hours: Annotated[bool, Query(alias="all", description="also show the hours that add up")] = False,
) -> ReconciliationAnswer:
    now = utc_now()
    found = await services.reconciler.reconcile(parse_window(start, end, now=now), now=now)
    return ReconciliationAnswer(
        start=found.window.start,
        end=found.window.end,
        num_unreconciled_events=found.num_unreconciled_events,
        num_unreconciled_tokens=found.num_unreconciled_tokens,
        events=[_event(each) for each in found.events if all_hours or each.num_missing or each.num_unreconciled],
        tokens=[_token(each) for each in found.tokens if all_hours or each.is_difference],
        silent_workers=list(found.silent_workers),
    )


def _event(counts: EventCounts) -> EventRow:
    return EventRow(**vars(counts), num_missing=counts.num_missing)


def _token(counts: TokenCounts) -> TokenRow:
    return TokenRow(**vars(counts), num_missing=counts.num_missing, is_difference=counts.is_difference)
