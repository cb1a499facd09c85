from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import require_tenant
from gateway.domain.tools.models import ServerTool
from gateway.domain.tools.sealing import origin_of, seal
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from protocol.ids import new_id

MAX_TOOLS = 64
"""Limit per tenant, and for those that are for everybody."""
Credential = tuple[str, str]
"""A header's name, and its value, which is the secret."""


def tools_visible_to(tenant_id: UUID | None) -> Select[ServerTool]:
    """A tenant's own tools and those for everybody; None: all."""
    query = select(ServerTool)
    if tenant_id is None:
        return query
    return query.where(or_(ServerTool.tenant_id == tenant_id, ServerTool.tenant_id.is_(None)))


async def create_tool(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID | None,
    fields: Mapping[str, Any],
    credential: Credential | None,
    pepper: str,
    now: datetime,
) -> ServerTool:
    """`fields`: the columns that a draft has, already checked. `tenant_id` None: for everybody if the principal is a
    platform administrator, else for the principal's own tenant. Raises NotFound or Conflict."""
    tenant_id = tenant_id if principal.is_platform_admin else tenant_id or principal.tenant_id
    principal.require_tenant(tenant_id)
    tool = ServerTool(id=new_id(now), tenant_id=tenant_id, created_at=now, changed_at=now, **fields)
    _set_credential(tool, credential, pepper=pepper)
    async with sessions.begin() as session:
        # Two tools whose names collide must not be made at the same time.
        await take_lock(session, "names")
        if tenant_id is not None:
            await require_tenant(session, tenant_id)
        await _check_name(session, tool.name, tenant_id=tenant_id)
        owned = select(func.count()).select_from(ServerTool).where(ServerTool.tenant_id.is_not_distinct_from(tenant_id))
        if (await session.scalar(owned) or 0) >= MAX_TOOLS:
            raise Conflict(f"there may be at most {MAX_TOOLS} tools of one owner; delete one first")
        session.add(tool)
        await _record(session, principal, "tool.create", tool, now=now, detail=_shown(fields, credential), after=tool)
    return tool


async def change_tool(
    sessions: Sessions,
    principal: Principal,
    tool_id: UUID,
    changes: Mapping[str, Any],
    *,
    credential: Credential | None,
    has_credential: bool,
    version: int | None = None,
    pepper: str,
    now: datetime,
) -> ServerTool:
    """`has_credential`: `credential` replaces the current one, None removes it; otherwise the tool keeps it.

    Raises NotFound, Stale, and InvalidRequest if the URL moves to another server without a new credential: the old one
    was given for the old server.
    """
    async with sessions.begin() as session:
        tool = await require_tool(session, principal, tool_id)
        check_version(tool, version)
        moves = "url" in changes and origin_of(changes["url"]) != origin_of(tool.url)
        if moves and tool.sealed_credential is not None and not has_credential:
            raise InvalidRequest(
                "credential: send it again, or null, since the URL is at another server now", param="credential"
            )
        before = shown(tool)
        for field, value in changes.items():
            setattr(tool, field, value)
        tool.changed_at = now
        if has_credential:
            _set_credential(tool, credential, pepper=pepper)
        detail = _shown(changes, credential if has_credential else None)
        await _record(session, principal, "tool.change", tool, now=now, detail=detail, before=before, after=tool)
    return tool


async def delete_tool(
    sessions: Sessions, principal: Principal, tool_id: UUID, *, version: int | None = None, now: datetime
) -> None:
    """Requests under way may still call the tool until they end."""
    async with sessions.begin() as session:
        tool = await require_tool(session, principal, tool_id)
        check_version(tool, version)
        before = shown(tool)
        await session.delete(tool)
        await _record(session, principal, "tool.delete", tool, now=now, detail={"name": tool.name}, before=before)


async def require_tool(session: AsyncSession, principal: Principal, tool_id: UUID) -> ServerTool:
    """A tool that the principal may administer. Raises NotFound."""
    tool = await session.get(ServerTool, tool_id)
    if tool is None:
        raise NotFound("there is no such tool")
    principal.require_tenant(tool.tenant_id)
    return tool


async def _check_name(session: AsyncSession, name: str, *, tenant_id: UUID | None) -> None:
    """As with adapters, a name in a request must mean one tool, whichever tenant sends it."""
    same = select(ServerTool).where(ServerTool.name == name).limit(1)
    if tenant_id is not None:
        same = same.where(or_(ServerTool.tenant_id == tenant_id, ServerTool.tenant_id.is_(None)))
    found = await session.scalar(same)
    if found is not None:
        owner = "everybody's" if found.tenant_id is None else f"of the tenant {found.tenant_id}"
        raise Conflict(f"there is already a tool named {name!r} ({owner})", param="name")


def _set_credential(tool: ServerTool, credential: Credential | None, *, pepper: str) -> None:
    tool.credential_header, tool.sealed_credential = None, None
    if credential is not None:
        tool.credential_header, secret = credential
        tool.sealed_credential = seal(secret, tool_id=tool.id, url=tool.url, pepper=pepper)


def _shown(fields: Mapping[str, Any], credential: Credential | None) -> dict[str, Any]:
    """The fields for the audit log: without the secret, and without schema and description, which may be long."""
    shown = {name: value for name, value in fields.items() if name not in ("parameters", "description")}
    return shown if credential is None else shown | {"credential_header": credential[0]}


async def _record(
    session: AsyncSession,
    principal: Principal,
    action: str,
    tool: ServerTool,
    *,
    now: datetime,
    detail: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    after: ServerTool | None = None,
) -> None:
    await record(
        session,
        principal,
        action,
        object_id=tool.id,
        tenant_id=tool.tenant_id,
        now=now,
        detail=detail,
        before=before,
        after=after,
    )
