"""One tenant: its limits with their usage, its keys and end users, and the actions on it."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.sessions import show_policy
from gateway.admin.tenants import show_tenant
from gateway.clock import utc_now
from gateway.dashboard.limit_forms import LIMITS
from gateway.dashboard.limits_now import LABELS, limits_now
from gateway.dashboard.links import path_id
from gateway.dashboard.numbered import numbered
from gateway.dashboard.pages import Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import keys_of
from gateway.domain.tenants.end_users import end_users_of
from gateway.domain.tenants.models import EndUser
from gateway.services import Services

NUM_SHOWN = 10
"""How many keys and end users are shown; lists of their own show all."""


async def show_one(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, also for another tenant. A visitor who is no administrator sees neither keys nor end users."""
    tenant_id = path_id(request, "tenant_id")
    tenant = await show_tenant(tenant_id, visitor.principal, services.sessions)
    keys = users = policy = None
    if visitor.is_admin and tenant.deleted_at is None:
        async with services.sessions() as session:
            live = keys_of(tenant_id).where(ApiKey.revoked_at.is_(None))
            keys = await numbered(session, live, "1", order=(ApiKey.name, ApiKey.id), size=NUM_SHOWN)
            users = await numbered(session, end_users_of(tenant_id), "1", order=(EndUser.user_id,), size=NUM_SHOWN)
        policy = await show_policy(tenant_id, visitor.principal, services.sessions)
    return render(
        "tenants/one.html",
        visitor=visitor,
        tenant=tenant,
        limits=await limits_now(services, tenant_id=tenant_id, tenant_name=tenant.name, tier=tenant.tier),
        labels=LABELS,
        fields=LIMITS,
        keys=keys,
        users=users,
        policy=policy,
        now=utc_now(),
    )


PAGES = (Page("/tenants/{tenant_id}", show_one),)
