"""Requests that were refused before admission, by their sender and by the limit that refused them."""

from uuid import UUID

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.limits_now import LABELS
from gateway.dashboard.links import query_of
from gateway.dashboard.pages import Page
from gateway.dashboard.ranges import PRESETS, range_of
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.keys.models import ApiKey
from gateway.services import Services

PATH = "/dashboard/requests/refused"
MAX_ROWS = 200


async def show_refused(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises Unavailable, and InvalidRequest for an invalid range."""
    query, now = query_of(PATH, visitor.asked(request), ("range", "from", "to", "tenant")), utc_now()
    chosen = range_of(query["range"], query["from"], query["to"], zone=visitor.zone, now=now)
    tenant_id = visitor.shown_tenant(query["tenant"])
    rows = await services.usage.refusals_by_key(chosen.window, tenant_id=tenant_id, limit=MAX_ROWS)
    return render(
        "refused.html",
        visitor=visitor,
        query=query,
        chosen=chosen,
        presets=PRESETS.values(),
        tenant_id=tenant_id,
        rows=rows,
        keys=await _key_names(services, {row["key_id"] for row in rows if row["key_id"]}) if visitor.is_admin else {},
        labels=LABELS,
        is_cut=len(rows) == MAX_ROWS,
        now=now,
    )


async def _key_names(services: Services, key_ids: set[str]) -> dict[str, str]:
    async with services.sessions() as session:
        found = await session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(map(UUID, key_ids))))
    return {str(key_id): name for key_id, name in found}


PAGES = (Page("/requests/refused", show_refused),)
