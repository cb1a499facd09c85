from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter
from gateway.domain.answer_caching.models import CachePolicy
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.files.models import StoredFile
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import indispensable, usable_admin_keys
from gateway.domain.limits import changed_limits
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.tenants.models import EndUser, Tenant
from gateway.domain.tiers.models import Tier
from gateway.domain.tools.models import ServerTool
from gateway.domain.versions import check_version
from gateway.domain.webhooks.models import Webhook
from gateway.http.errors import Conflict, Forbidden, InvalidRequest, NotFound
from protocol.ids import new_id


def tenants_visible_to(tenant_id: UUID | None, *, with_deleted: bool = False) -> Select[Tenant]:
    """One tenant; None: all."""
    query = select(Tenant) if with_deleted else select(Tenant).where(Tenant.deleted_at.is_(None))
    return query if tenant_id is None else query.where(Tenant.id == tenant_id)


async def create_tenant(
    sessions: Sessions,
    principal: Principal | None,
    *,
    name: str,
    tier: str,
    is_local_only: bool = False,
    limits: Mapping[str, int] | None = None,
    user_limits: Mapping[str, int] | None = None,
    now: datetime,
) -> Tenant:
    tenant = Tenant(
        id=new_id(now),
        name=name,
        tier=tier,
        is_local_only=is_local_only,
        limits=changed_limits(None, limits),
        user_limits=changed_limits(None, user_limits),
        created_at=now,
        suspended_at=None,
    )
    try:
        async with sessions.begin() as session:
            await _check_tier(session, tier)
            session.add(tenant)
            detail = {"name": name, "tier": tier, "is_local_only": is_local_only}
            detail |= {"limits": tenant.limits, "user_limits": tenant.user_limits}
            await record(
                session,
                principal,
                "tenant.create",
                object_id=tenant.id,
                tenant_id=tenant.id,
                now=now,
                detail=detail,
                after=tenant,
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {name!r}", param="name") from None
    return tenant


async def get_tenant(sessions: Sessions, principal: Principal, tenant_id: UUID) -> Tenant:
    """The tenant, even if deleted: old usage and invoices name it. Raises NotFound."""
    principal.require_tenant(tenant_id)
    async with sessions() as session:
        tenant = await session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFound("there is no such tenant")
    return tenant


async def change_tenant(
    sessions: Sessions,
    principal: Principal,
    tenant_id: UUID,
    *,
    name: str | None = None,
    tier: str | None = None,
    is_suspended: bool | None = None,
    is_local_only: bool | None = None,
    changed: Mapping[str, Mapping[str, int | None] | None] = MappingProxyType({}),
    version: int | None = None,
    now: datetime,
) -> Tenant:
    """Fields that are None stay as they are. changed: `limits` and `user_limits`, as `changed_limits` takes them.

    A tenant's own administrator may set only the limits of its end users. Raises Forbidden for the rest.
    """
    principal.require_tenant(tenant_id)
    given = {"name": name, "tier": tier, "is_suspended": is_suspended, "is_local_only": is_local_only}
    detail: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    detail |= {name: None if value is None else dict(value) for name, value in changed.items()}
    if not principal.is_platform_admin and detail.keys() - {"user_limits"}:
        raise Forbidden("a tenant's administrator may change user_limits; the rest is the platform's operator's")
    try:
        async with sessions.begin() as session:
            if is_suspended:
                await take_lock(session, "admins")
            tenant = await require_tenant(session, tenant_id)
            if is_suspended:
                await _check_dispensable(session, tenant, "suspended")
            check_version(tenant, version)
            before = shown(tenant)
            if name is not None:
                tenant.name = name
            if tier is not None and tier != tenant.tier:
                await _check_tier(session, tier)
                tenant.tier = tier
            if is_local_only is not None:
                tenant.is_local_only = is_local_only
            for column, changes in changed.items():
                setattr(tenant, column, changed_limits(getattr(tenant, column), changes))
            if is_suspended is not None:
                tenant.suspended_at = tenant.suspended_at or now if is_suspended else None
            await record(
                session,
                principal,
                "tenant.change",
                object_id=tenant_id,
                tenant_id=tenant_id,
                now=now,
                detail=detail,
                before=before,
                after=tenant,
            )
    except IntegrityError:
        raise Conflict(f"there is already a tenant named {name!r}", param="name") from None
    return tenant


async def delete_tenant(
    sessions: Sessions, principal: Principal, tenant_id: UUID, *, version: int | None = None, now: datetime
) -> None:
    """Revoke the tenant's keys, remove its adapters, files, tools and webhooks, and free its name. The row, usage and
    prices stay for its invoices."""
    async with sessions.begin() as session:
        await end_tenant(session, principal, tenant_id, version=version, now=now)


async def end_tenant(
    session: AsyncSession, principal: Principal, tenant_id: UUID, *, version: int | None = None, now: datetime
) -> None:
    """`delete_tenant` in the caller's transaction."""
    await take_lock(session, "admins")
    # An adapter made meanwhile would keep its name for ever.
    await take_lock(session, "names")
    tenant = await require_tenant(session, tenant_id)
    check_version(tenant, version)
    await _check_dispensable(session, tenant, "deleted")
    before = shown(tenant)
    tenant.deleted_at = now
    live_keys = ApiKey.tenant_id == tenant_id, ApiKey.revoked_at.is_(None)
    await session.execute(update(ApiKey).where(*live_keys).values(revoked_at=now))
    for adapter in await session.scalars(
        select(Adapter).where(Adapter.tenant_id == tenant_id).options(selectinload(Adapter.variants))
    ):
        await session.delete(adapter)
    await session.execute(delete(EndUser).where(EndUser.tenant_id == tenant_id))
    await session.execute(delete(Guardrail).where(Guardrail.tenant_id == tenant_id))
    await session.execute(delete(ServerTool).where(ServerTool.tenant_id == tenant_id))
    await session.execute(update(StoredFile).where(StoredFile.tenant_id == tenant_id).values(expires_at=now))
    await session.execute(delete(Webhook).where(Webhook.tenant_id == tenant_id))
    await session.execute(delete(CachePolicy).where(CachePolicy.tenant_id == tenant_id))
    # Its sealed key goes with the row, so that nobody can read the tenant's sealed sessions any more.
    await session.execute(delete(SessionPolicy).where(SessionPolicy.tenant_id == tenant_id))
    await record(
        session,
        principal,
        "tenant.delete",
        object_id=tenant_id,
        tenant_id=tenant_id,
        now=now,
        detail={"name": tenant.name},
        before=before,
    )


async def require_tenant(session: AsyncSession, tenant_id: UUID) -> Tenant:
    """Raises NotFound, also for a deleted tenant."""
    tenant = await session.get(Tenant, tenant_id)
    if tenant is None or tenant.deleted_at is not None:
        raise NotFound("there is no such tenant")
    return tenant


async def _check_dispensable(session: AsyncSession, tenant: Tenant, ending: str) -> None:
    """Raises Conflict if nobody could administer the platform without this tenant; `admins` must be locked."""
    if tenant.is_platform:
        raise Conflict(f"this is the platform's own tenant, which cannot be {ending}; revoke single keys of it instead")
    usable = (await session.scalars(usable_admin_keys())).all()
    owners = {key.tenant_id for key in indispensable(usable)}
    if owners == {tenant.id}:
        raise Conflict(
            f"the last keys that may administer the platform are this tenant's, so it cannot be {ending}; "
            "make another first, with POST /admin/v1/keys or `tiergate admin-key`"
        )


async def _check_tier(session: AsyncSession, tier: str) -> None:
    found = await session.get(Tier, tier)
    if found is None:
        raise InvalidRequest(f"there is no tier {tier!r}; GET /admin/v1/tiers lists them", param="tier")
    if found.retired_at is not None:
        raise InvalidRequest(f"the tier {tier!r} is retired and takes no new tenants; choose another", param="tier")
