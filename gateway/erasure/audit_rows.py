"""Erasure in the audit log: rows stay in their chain, without their contents."""

import json

from sqlalchemy import ColumnElement, Text, cast, func, or_, select

from gateway.clock import utc_now
from gateway.domain.audit.erasing import erase_contents
from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.writing import ERASE_ACTION
from gateway.erasure.subject import Counts, Stores, Subject


async def erase_audit_rows(stores: Stores, subject: Subject) -> Counts:
    why = {"erasure_id": str(subject.erasure_id)}
    num_rows = await erase_contents(
        stores.sessions, *_which(subject), tenant_id=subject.tenant_id, why=why, now=utc_now()
    )
    return {"audit_rows_emptied": num_rows}


async def count_audit_rows(stores: Stores, subject: Subject) -> int:
    """How many of the subject's rows still have contents."""
    has_contents = ~AuditEntry.is_erased, AuditEntry.action != ERASE_ACTION
    async with stores.sessions() as session:
        query = select(func.count()).select_from(AuditEntry).where(*has_contents, *_which(subject))
        return await session.scalar(query) or 0


def _which(subject: Subject) -> tuple[ColumnElement[bool], ...]:
    """The tenant's rows; for an end user, only those whose JSON contains the name as a whole string."""
    of_tenant = AuditEntry.tenant_id == subject.tenant_id
    if subject.user is None:
        return (of_tenant,)
    named = json.dumps(subject.user)
    contents = (AuditEntry.detail, AuditEntry.before, AuditEntry.after)
    return of_tenant, or_(*(cast(column, Text).contains(named, autoescape=True) for column in contents))
