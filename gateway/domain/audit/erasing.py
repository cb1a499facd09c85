"""Erases the contents of audit rows so that the chain still holds: a new row names those that were erased."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, select, update

from gateway.database import Sessions
from gateway.domain.audit.chain import BLANK, Frame, trace
from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.writing import ERASE_ACTION, Json, NewEntry, append

ROWS_A_TIME = 500
"""How many erased rows one new row names, in one transaction."""


async def erase_contents(
    sessions: Sessions, *which: ColumnElement[bool], tenant_id: UUID | None, why: Json, now: datetime
) -> int:
    """Returns how many rows were erased. Rows that record erasures stay: they contain only `why`, positions and hashes.

    why: must hold nothing personal, because it stays in those rows.
    """
    num_erased = 0
    frame = [getattr(AuditEntry, name) for name in Frame._fields]
    query = select(*frame, AuditEntry.contents_hash, AuditEntry.hash).where(
        ~AuditEntry.is_erased, AuditEntry.action != ERASE_ACTION, *which
    )
    query = query.order_by(AuditEntry.position).limit(ROWS_A_TIME)
    blank = BLANK._asdict() | {"detail": {}}
    while True:
        async with sessions.begin() as session:
            rows = (await session.execute(query)).all()
            if not rows:
                return num_erased
            ids = [row.id for row in rows]
            change = update(AuditEntry).where(AuditEntry.id.in_(ids)).values(**blank, salt=None, is_erased=True)
            await session.execute(change.execution_options(synchronize_session=False))
            named = {str(row.position): trace(Frame(*row[: len(frame)]), row.contents_hash, row.hash) for row in rows}
            detail = {**why, "rows": named}
            await append(session, [NewEntry(now, None, tenant_id, ERASE_ACTION, "audit_log", detail=detail)])
        num_erased += len(rows)
