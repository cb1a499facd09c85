"""All tenants, searchable by name, id, tier and state, with each tenant's spending this month."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Select, or_
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.links import Query, query_of
from gateway.dashboard.numbered import numbered
from gateway.dashboard.pages import Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import tenants_visible_to
from gateway.http.errors import Unavailable
from gateway.metering.windows import month_until
from gateway.services import Services

PATH = "/dashboard/tenants"
STATES = ("live", "suspended", "deleted")
_MAX_TENANTS = 100_000


async def list_tenants(request: Request, services: Services, visitor: Visitor) -> Response:
    """A tenant's own visitor is redirected to the tenant's page."""
    if not visitor.principal.is_platform_admin:
        return RedirectResponse(f"{PATH}/{visitor.principal.tenant_id}", 303)
    query = query_of(PATH, visitor.asked(request), ("q", "tier", "state", "page"))
    async with services.sessions() as session:
        page = await numbered(session, _found(query), query["page"], order=(Tenant.name, Tenant.id))
    return render(
        "tenants/list.html",
        visitor=visitor,
        query=query,
        page=page,
        states=STATES,
        tiers=sorted(services.catalog.current.tiers),
        spent=await _spent_this_month(services),
        now=utc_now(),
    )


def _found(query: Query) -> Select[Tenant]:
    state, tier, words = query["state"], query["tier"], query["q"]
    found = tenants_visible_to(None, with_deleted=state == "deleted")
    if state == "deleted":
        found = found.where(Tenant.deleted_at.is_not(None))
    elif state == "suspended":
        found = found.where(Tenant.suspended_at.is_not(None))
    if tier:
        found = found.where(Tenant.tier == tier)
    if words:
        is_named = Tenant.name.icontains(words, autoescape=True)
        try:
            found = found.where(or_(is_named, Tenant.id == UUID(words)))
        except ValueError:
            found = found.where(is_named)
    return found


async def _spent_this_month(services: Services) -> Mapping[str, int] | None:
    """Tenant id -> nano-dollars in the calendar month in UTC, as budgets count. None while usage cannot be read."""
    try:
        page = await services.usage.usage(
            month_until(utc_now()), tenant_id=None, group_by="tenant", limit=_MAX_TENANTS, may_lag=True
        )
    except Unavailable:
        return None
    return {row["tenant_id"]: int(row["cost_nanousd"]) for row in page.rows}


PAGES = (Page("/tenants", list_tenants, label="Tenants"),)
