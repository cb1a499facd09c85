from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.tiers.models import Tier
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id


def tenants_visible_to(tenant_id: UUID | None) -> Select[Tenant]:
    """One tenant; None: all."""
    query = select(Tenant)
    return query if tenant_id is None else query.where(Tenant.id == tenant_id)


async def create_tenant(
    sessions: Sessions, principal: Principal | None, *, name: str, tier: str, now: datetime
) -> Tenant:
    tenant = Tenant(id=new_id(now), name=name, tier=tier, created_at=now, suspended_at=None)
    try:
        async with sessions.begin() as session:
            await _check_tier(session, tier)
            session.add(tenant)
            detail = {"name": name, "tier": tier}
            record(
                session, principal, "tenant.create", object_id=tenant.id, tenant_id=tenant.id, now=now, detail=detail
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {name!r}", param="name") from None
    return tenant


async def get_tenant(sessions: Sessions, principal: Principal, tenant_id: UUID) -> Tenant:
    principal.require_tenant(tenant_id)
    async with sessions() as session:
        return await require_tenant(session, tenant_id)


async def change_tenant(
    sessions: Sessions,
    principal: Principal,
    tenant_id: UUID,
    *,
    name: str | None = None,
    tier: str | None = None,
    is_suspended: bool | None = None,
    now: datetime,
) -> Tenant:
    """What is None stays as it is."""
    given = {"name": name, "tier": tier, "is_suspended": is_suspended}
    detail = {field: value for field, value in given.items() if value is not None}
    try:
        async with sessions.begin() as session:
            tenant = await require_tenant(session, tenant_id)
            if name is not None:
                tenant.name = name
            if tier is not None:
                await _check_tier(session, tier)
                tenant.tier = tier
            if is_suspended is not None:
                tenant.suspended_at = now if is_suspended else None
            record(
                session, principal, "tenant.change", object_id=tenant_id, tenant_id=tenant_id, now=now, detail=detail
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {name!r}", param="name") from None
    return tenant


async def require_tenant(session: AsyncSession, tenant_id: UUID) -> Tenant:
    tenant = await session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFound("there is no such tenant")
    return tenant


async def _check_tier(session: AsyncSession, tier: str) -> None:
    if await session.get(Tier, tier) is None:
        raise InvalidRequest(f"there is no tier {tier!r}; GET /admin/v1/tiers lists them", param="tier")
