from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from sqlalchemy import Select, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.exc import StaleDataError

from gateway.database import Base
from gateway.domain.audit.fields import changed, shown
from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.writing import Json, NewEntry, append
from gateway.domain.principal import Principal
from gateway.domain.versions import Stale
from gateway.log_context import current_address, current_request_id


async def record(
    session: AsyncSession,
    principal: Principal | None,
    action: str,
    *,
    object_id: object,
    tenant_id: UUID | None,
    now: datetime,
    detail: Json = MappingProxyType({}),
    before: Json | None = None,
    after: Base | Json | None = None,
) -> None:
    """Add the audit row to the caller's transaction, as its last step. `principal` None: the platform itself.

    before: what `shown` gave for the row before the change; after: the changed row, or what `shown` gives for it.
    Raises Stale.
    """
    try:
        await session.flush()
    except StaleDataError:
        # Another transaction has changed the row since we read it.
        raise Stale from None
    now_shown = shown(after) if isinstance(after, Base) else after
    if before is not None and now_shown is not None:
        before, now_shown = changed(before, now_shown)
    person = principal.person if principal else None
    entry = NewEntry(
        at=now,
        actor_key_id=principal.key_id if principal and person is None else None,
        actor_subject=person.subject if person else None,
        actor_email=person.email if person else None,
        tenant_id=tenant_id,
        action=action,
        object_id=str(object_id),
        request_id=current_request_id(),
        address=current_address(),
        detail=detail,
        before=before,
        after=now_shown,
    )
    await append(session, [entry])


@dataclass(frozen=True)
class EntryFilter:
    """None matches anything."""

    actor_key_id: UUID | None = None
    actor_person: str | None = None
    """Subject or email address; the whole value must match."""
    action: str | None = None
    """`invoice.finalize`, or `invoice` for all actions that begin with `invoice.`."""
    object_id: str | None = None
    request_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""


ALL_ENTRIES = EntryFilter()


def entries_of(tenant_id: UUID | None, asked: EntryFilter = ALL_ENTRIES) -> Select[AuditEntry]:
    """A tenant's entries; None: all."""
    query = select(AuditEntry)
    if tenant_id is not None:
        query = query.where(AuditEntry.tenant_id == tenant_id)
    if asked.actor_key_id is not None:
        query = query.where(AuditEntry.actor_key_id == asked.actor_key_id)
    if asked.actor_person is not None:
        is_person = (AuditEntry.actor_subject, AuditEntry.actor_email)
        query = query.where(or_(*(column == asked.actor_person for column in is_person)))
    if asked.action is not None:
        is_of_kind = AuditEntry.action.startswith(f"{asked.action}.", autoescape=True)
        query = query.where(or_(AuditEntry.action == asked.action, is_of_kind))
    if asked.object_id is not None:
        query = query.where(AuditEntry.object_id == asked.object_id)
    if asked.request_id is not None:
        query = query.where(AuditEntry.request_id == asked.request_id)
    if asked.since is not None:
        query = query.where(AuditEntry.at >= asked.since)
    if asked.until is not None:
        query = query.where(AuditEntry.at < asked.until)
    return query
