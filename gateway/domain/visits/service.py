from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, select

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.visits.models import Visit
from protocol.ids import new_id


async def begin_visit(
    sessions: Sessions, key_id: UUID, *, address: str, browser: str, expires_at: datetime, now: datetime
) -> UUID:
    """Those that have expired leave."""
    visit = Visit(
        id=new_id(now),
        key_id=key_id,
        began_at=now,
        expires_at=expires_at,
        address=address[:64],
        browser=browser[:200],
    )
    async with sessions.begin() as session:
        await session.execute(delete(Visit).where(Visit.expires_at <= now))
        session.add(visit)
    return visit.id


def visits_of(key_id: UUID, *, now: datetime) -> Select[Visit]:
    """That go on, the newest first."""
    return select(Visit).where(Visit.key_id == key_id, Visit.expires_at > now).order_by(Visit.id.desc())


def goes_on(visit_id: UUID, key_id: UUID, *, now: datetime) -> ColumnElement[bool]:
    return select(Visit.id).where(Visit.id == visit_id, Visit.key_id == key_id, Visit.expires_at > now).exists()


async def end_visit(sessions: Sessions, key_id: UUID, visit_id: UUID) -> None:
    """Logging out; nothing where it has ended."""
    async with sessions.begin() as session:
        await session.execute(delete(Visit).where(Visit.id == visit_id, Visit.key_id == key_id))


async def end_other_visits(sessions: Sessions, principal: Principal, own: UUID, *, now: datetime) -> Sequence[UUID]:
    """All but `own` of the principal's key."""
    async with sessions.begin() as session:
        visits = list(await session.scalars(visits_of(principal.key_id, now=now).where(Visit.id != own)))
        for visit in visits:
            await session.delete(visit)
        if visits:
            await record(
                session,
                principal,
                "visit.end",
                object_id=principal.key_id,
                tenant_id=principal.tenant_id,
                now=now,
                detail={"num_visits": len(visits)},
            )
    return [visit.id for visit in visits]
