"""End users that a tenant sets limits for by name."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.limits import changed_limits
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import EndUser
from gateway.domain.tenants.service import require_tenant
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, Forbidden, NotFound
from protocol.ids import new_id

MAX_USERS = 1000
"""Limit per tenant, because every gateway holds them in memory. `user_limits` is for all other end users."""


def end_users_of(tenant_id: UUID | None) -> Select[EndUser]:
    """A tenant's end users; None: everybody's."""
    query = select(EndUser)
    return query if tenant_id is None else query.where(EndUser.tenant_id == tenant_id)


async def create_end_user(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID,
    user_id: str,
    limits: Mapping[str, int | None],
    now: datetime,
) -> EndUser:
    principal.require_tenant(tenant_id)
    kept = changed_limits(None, limits) or {}
    user = EndUser(id=new_id(now), tenant_id=tenant_id, user_id=user_id, limits=kept, created_at=now)
    try:
        async with sessions.begin() as session:
            await require_tenant(session, tenant_id)
            mine = select(func.count()).select_from(EndUser).where(EndUser.tenant_id == tenant_id)
            if (await session.scalar(mine) or 0) >= MAX_USERS:
                raise Forbidden(f"at most {MAX_USERS} end users can have limits by name; delete one first")
            session.add(user)
            await _record(session, principal, "user.create", user, now, after=user)
    except IntegrityError:
        raise Conflict(f"the end user {user_id!r} has limits already; change them", param="user_id") from None
    return user


async def change_end_user(
    sessions: Sessions,
    principal: Principal,
    row_id: UUID,
    limits: Mapping[str, int | None] | None,
    *,
    version: int | None = None,
    now: datetime,
) -> EndUser:
    async with sessions.begin() as session:
        user = await get_end_user(session, principal, row_id)
        check_version(user, version)
        before = shown(user)
        user.limits = changed_limits(user.limits, limits) or {}
        await _record(session, principal, "user.change", user, now, before=before, after=user)
    return user


async def delete_end_user(
    sessions: Sessions, principal: Principal, row_id: UUID, *, version: int | None = None, now: datetime
) -> None:
    async with sessions.begin() as session:
        user = await get_end_user(session, principal, row_id)
        check_version(user, version)
        before = shown(user)
        await session.delete(user)
        await _record(session, principal, "user.delete", user, now, before=before)


async def get_end_user(session: AsyncSession, principal: Principal, row_id: UUID) -> EndUser:
    """Raises NotFound, also for another tenant's end user."""
    user = await session.get(EndUser, row_id)
    if user is None:
        raise NotFound("there is no such end user")
    principal.require_tenant(user.tenant_id)
    return user


async def _record(
    session: AsyncSession,
    principal: Principal,
    action: str,
    user: EndUser,
    now: datetime,
    *,
    before: Mapping[str, Any] | None = None,
    after: EndUser | None = None,
) -> None:
    await record(
        session,
        principal,
        action,
        object_id=user.id,
        tenant_id=user.tenant_id,
        now=now,
        detail={"user_id": user.user_id, "limits": user.limits},
        before=before,
        after=after,
    )
