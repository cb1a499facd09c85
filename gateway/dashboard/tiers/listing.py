"""The list of tiers, and one tier with its number of tenants."""

from sqlalchemy import func, select
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.tiers import get_tier, list_tiers
from gateway.clock import utc_now
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.tiers.fields import FIELDS
from gateway.dashboard.visitors import Visitor
from gateway.domain.tenants.models import Tenant
from gateway.http.pages import MAX_LIMIT, PageRequest
from gateway.services import Services

PATH = "/dashboard/tiers"
_SHOWN = tuple(field for field in FIELDS[:5])


async def show_tiers(request: Request, services: Services, visitor: Visitor) -> Response:
    page = await list_tiers(visitor.principal, services.sessions, PageRequest(limit=MAX_LIMIT, after=None))
    return render(
        "tiers/list.html",
        visitor=visitor,
        tiers=page.data,
        fields=_SHOWN,
        counts=await _counts(services) if visitor.principal.is_platform_admin else {},
        now=utc_now(),
    )


async def show_one(request: Request, services: Services, visitor: Visitor) -> Response:
    tier = await get_tier(str(request.path_params["name"]), visitor.principal, services.sessions)
    return render(
        "tiers/one.html",
        visitor=visitor,
        tier=tier,
        fields=FIELDS,
        num_tenants=(await _counts(services)).get(tier.name, 0) if visitor.principal.is_platform_admin else None,
        now=utc_now(),
    )


async def _counts(services: Services) -> dict[str, int]:
    """Tier -> its number of tenants."""
    query = select(Tenant.tier, func.count()).where(Tenant.deleted_at.is_(None)).group_by(Tenant.tier)
    async with services.sessions() as session:
        return {row[0]: row[1] for row in await session.execute(query)}


PAGES = (Page("/tiers", show_tiers, who=ADMINS, label="Tiers"), Page("/tiers/{name}", show_one, who=ADMINS))
