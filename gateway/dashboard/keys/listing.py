"""Keys, searchable by tenant, name, prefix and state."""

from uuid import UUID

from sqlalchemy import Select, or_
from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.links import Query, query_of
from gateway.dashboard.numbered import numbered
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import keys_of
from gateway.services import Services

PATH = "/dashboard/keys"
STATES = ("live", "revoked")


async def list_keys(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(PATH, visitor.asked(request), ("tenant", "q", "state", "page"))
    tenant_id = visitor.shown_tenant(query["tenant"])
    async with services.sessions() as session:
        found = _found(tenant_id, query)
        page = await numbered(session, found, query["page"], order=(ApiKey.name, ApiKey.id))
    return render(
        "keys/list.html",
        visitor=visitor,
        query=query,
        page=page,
        states=STATES,
        tenant_id=tenant_id,
        now=utc_now(),
    )


def _found(tenant_id: str | None, query: Query) -> Select[ApiKey]:
    found, words = keys_of(UUID(tenant_id) if tenant_id else None), query["q"]
    found = found.where(ApiKey.revoked_at.is_not(None) if query["state"] == "revoked" else ApiKey.revoked_at.is_(None))
    if words:
        begins = words.removeprefix("tg-")[:8]
        found = found.where(or_(ApiKey.name.icontains(words, autoescape=True), ApiKey.prefix == begins))
    return found


PAGES = (Page("/keys", list_keys, who=ADMINS, label="Keys"),)
