"""One key: what it may do, its limits with their usage, and the actions on it."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.keys import show_key
from gateway.admin.tenants import show_tenant
from gateway.clock import utc_now
from gateway.dashboard.keys.listing import PATH
from gateway.dashboard.limit_forms import LIMITS
from gateway.dashboard.limits_now import LABELS, limits_now
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.services import Services


async def show_one(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, also for another tenant's key."""
    key = await show_key(path_id(request, "key_id"), visitor.principal, services.sessions)
    tenant = await show_tenant(key.tenant_id, visitor.principal, services.sessions)
    now = utc_now()
    limits = await limits_now(
        services,
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        tier=tenant.tier,
        key_id=key.id,
        key_limits=key.limits,
    )
    return render(
        "keys/one.html",
        visitor=visitor,
        path=f"{PATH}/{key.id}",
        key=key,
        tenant=tenant,
        limits=limits,
        labels=LABELS,
        fields=LIMITS,
        is_live=key.revoked_at is None and (key.expires_at is None or key.expires_at > now),
        now=now,
    )


PAGES = (Page("/keys/{key_id}", show_one, who=ADMINS),)
