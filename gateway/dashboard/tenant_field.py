"""The owner of a new object: a field for platform administrators, the visitor's own tenant for others."""

from uuid import UUID

from sqlalchemy import select
from starlette.requests import Request

from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.tenants.models import Tenant
from gateway.http.errors import InvalidRequest
from gateway.services import Services


def standing_tenant(request: Request, visitor: Visitor) -> dict[str, str]:
    """The field's initial value: the name of the tenant whose id is in the link."""
    asked = request.query_params.get("tenant", "")
    return {"tenant_id": visitor.names.tenants.get(asked, "")} if visitor.principal.is_platform_admin else {}


async def typed_tenant(services: Services, visitor: Visitor, typed: Typed) -> UUID:
    """Raises InvalidRequest unless the field holds the whole name or the id of a tenant that is not deleted."""
    if not visitor.principal.is_platform_admin:
        return visitor.principal.tenant_id
    text = typed.text("tenant_id")
    try:
        is_meant = Tenant.id == UUID(text)
    except ValueError:
        is_meant = Tenant.name == text
    async with services.sessions() as session:
        found = await session.scalar(select(Tenant.id).where(is_meant, Tenant.deleted_at.is_(None)))
    if found is None:
        raise InvalidRequest("write the whole name of a tenant, or its id", param="tenant_id")
    return found
