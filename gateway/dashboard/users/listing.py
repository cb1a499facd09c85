"""End users with limits of their own, found by tenant and by a part of their name."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.limit_forms import LIMITS
from gateway.dashboard.links import query_of
from gateway.dashboard.numbered import numbered
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.tenants.end_users import end_users_of
from gateway.domain.tenants.models import EndUser
from gateway.services import Services

PATH = "/dashboard/users"


async def list_users(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(PATH, visitor.asked(request), ("tenant", "q", "page"))
    tenant_id = visitor.shown_tenant(query["tenant"])
    found = end_users_of(UUID(tenant_id) if tenant_id else None)
    if query["q"]:
        found = found.where(EndUser.user_id.icontains(query["q"], autoescape=True))
    async with services.sessions() as session:
        page = await numbered(session, found, query["page"], order=(EndUser.user_id, EndUser.id))
    return render(
        "users/list.html",
        visitor=visitor,
        query=query,
        page=page,
        tenant_id=tenant_id,
        fields=LIMITS,
        now=utc_now(),
    )


PAGES = (Page("/users", list_users, who=ADMINS, label="Users"),)
