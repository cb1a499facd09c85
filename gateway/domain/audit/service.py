from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.domain.audit.models import AuditEntry
from gateway.domain.principal import Principal
from protocol.ids import new_id


def record(
    session: AsyncSession,
    principal: Principal | None,
    action: str,
    *,
    object_id: object,
    tenant_id: UUID | None,
    now: datetime,
    detail: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add the audit row to the caller's transaction. `principal` None: the platform itself, at its start."""
    session.add(
        AuditEntry(
            id=new_id(now),
            at=now,
            actor_key_id=principal.key_id if principal else None,
            tenant_id=tenant_id,
            action=action,
            object_id=str(object_id),
            detail=dict(detail),
        )
    )


def entries_of(tenant_id: UUID | None) -> Select[AuditEntry]:
    """A tenant's entries; None: all."""
    query = select(AuditEntry)
    return query if tenant_id is None else query.where(AuditEntry.tenant_id == tenant_id)
