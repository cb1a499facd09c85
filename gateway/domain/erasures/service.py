import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import NO_PEPPER, Sessions
from gateway.domain.adapters.models import Adapter, AdapterVariant
from gateway.domain.audit.service import record
from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.names import seal_name, unseal_name
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import end_tenant
from gateway.http.errors import Conflict, Forbidden, NotFound
from gateway.peppers import Peppers
from protocol.ids import new_id

_SALT_BYTES = 32


def erasures_of(tenant_id: UUID | None) -> Select[Erasure]:
    """The erasures of a tenant's end users; None: all erasures, including those of tenants."""
    query = select(Erasure)
    return query if tenant_id is None else query.where(Erasure.tenant_id == tenant_id, Erasure.is_of_user)


async def get_erasure(sessions: Sessions, principal: Principal, erasure_id: UUID) -> Erasure:
    """Raises NotFound, also for another tenant's erasure."""
    async with sessions() as session:
        erasure = await session.get(Erasure, erasure_id)
    if erasure is None:
        raise NotFound("there is no such erasure")
    principal.require_tenant(erasure.tenant_id)
    return erasure


async def begin_erasure(
    sessions: Sessions, principal: Principal, *, tenant_id: UUID, user_id: str | None, now: datetime
) -> Erasure:
    """The same transaction deletes a tenant that is to be erased, so that none of its keys is accepted any more.

    A tenant's administrator may only have its end users erased. Raises NotFound, Forbidden or Conflict.
    """
    principal.require_tenant(tenant_id)
    if user_id is None and not principal.is_platform_admin:
        raise Forbidden("a tenant's administrator may have its end users erased; the tenant itself the operator erases")
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        await take_lock(session, "names")
        peppers: Peppers = session.info.get("peppers", NO_PEPPER)
        tenant = await session.get(Tenant, tenant_id)
        if tenant is None:
            raise NotFound("there is no such tenant")
        erasure_id = new_id(now)
        await _check_alone(session, tenant_id, user_id, peppers=peppers)
        progress: dict[str, object] = {}
        if user_id is None:
            progress["digests"] = await _digests(session, tenant_id)
            if tenant.deleted_at is None:
                await end_tenant(session, principal, tenant_id, now=now)
        erasure = Erasure(
            id=erasure_id,
            tenant_id=tenant_id,
            sealed_user=None if user_id is None else seal_name(user_id, erasure_id=erasure_id, pepper=peppers.current),
            is_of_user=user_id is not None,
            pseudonym=uuid4(),
            salt=os.urandom(_SALT_BYTES),
            requested_by=principal.key_id,
            created_at=now,
            progress=progress,
            steps=[],
        )
        session.add(erasure)
        # This row is the platform's own, so the erasure leaves it; it names nobody.
        detail = {"tenant_id": str(tenant_id), "is_of_user": erasure.is_of_user}
        action = "erasure.begin"
        await record(session, principal, action, object_id=erasure.id, tenant_id=None, now=now, detail=detail)
    return erasure


async def leaving_users(session: AsyncSession) -> frozenset[tuple[UUID, str]]:
    """(tenant id, user id) pairs of end users who are being erased."""
    peppers: Peppers = session.info.get("peppers", NO_PEPPER)
    running = await session.scalars(select(Erasure).where(Erasure.finished_at.is_(None), Erasure.is_of_user))
    named = [(row.tenant_id, _name_of(row, peppers=peppers)) for row in running]
    return frozenset((tenant_id, name) for tenant_id, name in named if name is not None)


def _name_of(erasure: Erasure, *, peppers: Peppers) -> str | None:
    if erasure.sealed_user is None:
        return None
    return unseal_name(erasure.sealed_user, erasure_id=erasure.id, peppers=peppers)


async def _check_alone(session: AsyncSession, tenant_id: UUID, user_id: str | None, *, peppers: Peppers) -> None:
    """Raises Conflict if the same erasure is under way, or if those of a tenant and of its end user would overlap."""
    running = await session.scalars(
        select(Erasure).where(Erasure.tenant_id == tenant_id, Erasure.finished_at.is_(None))
    )
    for erasure in running:
        if user_id is None or not erasure.is_of_user or _name_of(erasure, peppers=peppers) == user_id:
            raise Conflict(f"the erasure {erasure.id} is under way; wait for its end", code="erasure_under_way")


async def _digests(session: AsyncSession, tenant_id: UUID) -> Sequence[str]:
    """The digests of the tenant's own adapters, sorted."""
    variants = select(AdapterVariant.digest).join(Adapter, Adapter.id == AdapterVariant.adapter_id)
    found = await session.scalars(variants.where(Adapter.tenant_id == tenant_id, AdapterVariant.digest.is_not(None)))
    return sorted({digest for digest in found if digest is not None})
