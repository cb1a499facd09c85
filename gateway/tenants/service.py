from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.audit.service import record
from gateway.database import Sessions
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.identity import new_id
from gateway.principal import Principal
from gateway.tenants.models import Tenant
from gateway.tenants.schemas import TenantChange, TenantDraft
from gateway.tiers.models import Tier


def tenants_visible_to(tenant_id: UUID | None) -> Select[Tenant]:
    """One tenant; None: all."""
    query = select(Tenant)
    return query if tenant_id is None else query.where(Tenant.id == tenant_id)


async def create_tenant(
    sessions: Sessions, principal: Principal | None, draft: TenantDraft, *, now: datetime
) -> Tenant:
    tenant = Tenant(id=new_id(now), name=draft.name, tier=draft.tier, created_at=now, suspended_at=None)
    try:
        async with sessions.begin() as session:
            await _check_tier(session, draft.tier)
            session.add(tenant)
            detail = draft.model_dump()
            record(
                session, principal, "tenant.create", object_id=tenant.id, tenant_id=tenant.id, now=now, detail=detail
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {draft.name!r}", param="name") from None
    return tenant


async def get_tenant(sessions: Sessions, principal: Principal, tenant_id: UUID) -> Tenant:
    principal.require_tenant(tenant_id)
    async with sessions() as session:
        return await require_tenant(session, tenant_id)


async def change_tenant(
    sessions: Sessions, principal: Principal, tenant_id: UUID, change: TenantChange, *, now: datetime
) -> Tenant:
    fields = change.model_dump(exclude_unset=True)
    try:
        async with sessions.begin() as session:
            tenant = await require_tenant(session, tenant_id)
            if "name" in fields:
                tenant.name = change.name
            if "tier" in fields:
                await _check_tier(session, change.tier)
                tenant.tier = change.tier
            if "is_suspended" in fields:
                tenant.suspended_at = now if change.is_suspended else None
            record(
                session, principal, "tenant.change", object_id=tenant_id, tenant_id=tenant_id, now=now, detail=fields
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {change.name!r}", param="name") from None
    return tenant


async def require_tenant(session: AsyncSession, tenant_id: UUID) -> Tenant:
    tenant = await session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFound("there is no such tenant")
    return tenant


async def _check_tier(session: AsyncSession, tier: str) -> None:
    if await session.get(Tier, tier) is None:
        raise InvalidRequest(f"there is no tier {tier!r}; GET /admin/v1/tiers lists them", param="tier")
