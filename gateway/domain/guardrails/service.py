from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.guardrails.terms import seal_authorization
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import require_tenant
from gateway.domain.tools.sealing import origin_of
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id

MAX_GUARDRAILS = 8
"""Limit per tenant, and for those that are for everybody: each guardrail is asked for every request."""


def guardrails_visible_to(tenant_id: UUID | None) -> Select[Guardrail]:
    """A tenant's own guardrails and those for everybody; None: all."""
    query = select(Guardrail)
    if tenant_id is None:
        return query
    return query.where(or_(Guardrail.tenant_id == tenant_id, Guardrail.tenant_id.is_(None)))


async def create_guardrail(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID | None,
    fields: Mapping[str, Any],
    authorization: str | None,
    pepper: str,
    now: datetime,
) -> Guardrail:
    """`fields`: the columns that a draft has, already checked. `tenant_id` None: for everybody if the principal is a
    platform administrator, else for the principal's own tenant. Raises NotFound or Conflict."""
    tenant_id = tenant_id if principal.is_platform_admin else tenant_id or principal.tenant_id
    principal.require_tenant(tenant_id)
    guardrail = Guardrail(id=new_id(now), tenant_id=tenant_id, created_at=now, changed_at=now, **fields)
    _set_authorization(guardrail, authorization, pepper=pepper)
    async with sessions.begin() as session:
        # Two guardrails of one name, or one too many, must not be made at the same time.
        await take_lock(session, "names")
        if tenant_id is not None:
            await require_tenant(session, tenant_id)
        owned = Guardrail.tenant_id.is_not_distinct_from(tenant_id)
        if await session.scalar(select(Guardrail).where(owned, Guardrail.name == guardrail.name)) is not None:
            raise Conflict(f"there is already a guardrail named {guardrail.name!r}", param="name")
        if (await session.scalar(select(func.count()).select_from(Guardrail).where(owned)) or 0) >= MAX_GUARDRAILS:
            raise Conflict(f"there may be at most {MAX_GUARDRAILS} guardrails of one owner; delete one first")
        session.add(guardrail)
        detail = _shown(fields, has_authorization=authorization is not None)
        await record(
            session,
            principal,
            "guardrail.create",
            object_id=guardrail.id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            after=guardrail,
        )
    return guardrail


async def change_guardrail(
    sessions: Sessions,
    principal: Principal,
    guardrail_id: UUID,
    changes: Mapping[str, Any],
    *,
    authorization: str | None,
    has_authorization: bool,
    version: int | None = None,
    pepper: str,
    now: datetime,
) -> Guardrail:
    """`has_authorization`: `authorization` replaces the current one, None removes it; otherwise the guardrail keeps it.

    Raises NotFound, Stale, and InvalidRequest if the URL moves to another server without a new authorization: the old
    one was given for the old server.
    """
    async with sessions.begin() as session:
        guardrail = await require_guardrail(session, principal, guardrail_id)
        check_version(guardrail, version)
        moves = "url" in changes and origin_of(changes["url"]) != origin_of(guardrail.url)
        if moves and guardrail.sealed_authorization is not None and not has_authorization:
            raise InvalidRequest(
                "authorization: send it again, or null, since the URL is at another server now", param="authorization"
            )
        before = shown(guardrail)
        for field, value in changes.items():
            setattr(guardrail, field, value)
        guardrail.changed_at = now
        if has_authorization:
            _set_authorization(guardrail, authorization, pepper=pepper)
        await record(
            session,
            principal,
            "guardrail.change",
            object_id=guardrail.id,
            tenant_id=guardrail.tenant_id,
            now=now,
            detail=_shown(changes, has_authorization=authorization is not None if has_authorization else None),
            before=before,
            after=guardrail,
        )
    return guardrail


async def delete_guardrail(
    sessions: Sessions, principal: Principal, guardrail_id: UUID, *, version: int | None = None, now: datetime
) -> None:
    """Requests under way are still checked to their end."""
    async with sessions.begin() as session:
        guardrail = await require_guardrail(session, principal, guardrail_id)
        check_version(guardrail, version)
        before = shown(guardrail)
        await session.delete(guardrail)
        await record(
            session,
            principal,
            "guardrail.delete",
            object_id=guardrail_id,
            tenant_id=guardrail.tenant_id,
            now=now,
            detail={"name": guardrail.name},
            before=before,
        )


async def require_guardrail(session: AsyncSession, principal: Principal, guardrail_id: UUID) -> Guardrail:
    """A guardrail that the principal may administer. Raises NotFound."""
    guardrail = await session.get(Guardrail, guardrail_id)
    if guardrail is None:
        raise NotFound("there is no such guardrail")
    principal.require_tenant(guardrail.tenant_id)
    return guardrail


def _set_authorization(guardrail: Guardrail, authorization: str | None, *, pepper: str) -> None:
    guardrail.sealed_authorization = (
        None
        if authorization is None
        else seal_authorization(authorization, guardrail_id=guardrail.id, url=guardrail.url, pepper=pepper)
    )


def _shown(fields: Mapping[str, Any], *, has_authorization: bool | None) -> dict[str, Any]:
    """The fields for the audit log, without the secret."""
    return dict(fields) if has_authorization is None else {**fields, "has_authorization": has_authorization}
