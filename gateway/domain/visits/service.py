from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.visits.models import Visit
from gateway.http.errors import NotFound
from protocol.ids import new_id

_PROLONGED_AT = 0.9
"""A visit is prolonged once at most this share of its idle time is left, so that not every page writes."""


async def begin_visit(
    sessions: Sessions, key_id: UUID, *, address: str, browser: str, expires_at: datetime, now: datetime
) -> UUID:
    """Begin the visit of a key."""
    visit = Visit(id=new_id(now), key_id=key_id, began_at=now, expires_at=expires_at, address=address, browser=browser)
    async with sessions.begin() as session:
        await add_visit(session, visit, now=now)
    return visit.id


async def add_visit(session: AsyncSession, visit: Visit, *, now: datetime) -> None:
    """Also deletes the visits that have expired."""
    visit.address, visit.browser = visit.address[:64], visit.browser[:200]
    await session.execute(delete(Visit).where(~goes_on(now)))
    session.add(visit)


def goes_on(now: datetime) -> ColumnElement[bool]:
    return (Visit.expires_at > now) & or_(Visit.idle_until.is_(None), Visit.idle_until > now)


def is_on(visit_id: UUID, key_id: UUID, *, now: datetime) -> ColumnElement[bool]:
    """Whether this visit of the key goes on."""
    return select(Visit.id).where(Visit.id == visit_id, Visit.key_id == key_id, goes_on(now)).exists()


def visits_of(holder_id: UUID, *, now: datetime) -> Select[Visit]:
    """The visits of a key or a person that go on, newest first."""
    return all_visits(now=now).where(_is_of(holder_id))


def all_visits(*, now: datetime) -> Select[Visit]:
    return select(Visit).where(goes_on(now)).order_by(Visit.id.desc())


def prolong(visit: Visit, *, now: datetime) -> bool:
    """Note activity. Returns whether the visit was changed and has to be written."""
    if visit.idle_s is None or visit.idle_until is None:
        return False
    idle = timedelta(seconds=visit.idle_s)
    if visit.idle_until - now > idle * _PROLONGED_AT:
        return False
    visit.idle_until = now + idle
    return True


async def end_visit(sessions: Sessions, holder_id: UUID, visit_id: UUID) -> Visit | None:
    """Log out. Returns the visit that ended, if there was one."""
    async with sessions.begin() as session:
        visit = await session.scalar(select(Visit).where(Visit.id == visit_id, _is_of(holder_id)))
        if visit is not None:
            await session.delete(visit)
    return visit


async def end_other_visits(sessions: Sessions, principal: Principal, own: UUID, *, now: datetime) -> Sequence[UUID]:
    """End all visits of the principal's key or person except `own`. Returns the ids of those."""
    query = visits_of(principal.key_id, now=now).where(Visit.id != own)
    async with sessions.begin() as session:
        visits = list(await session.scalars(query))
        await delete_visits(
            session, principal, visits, object_id=principal.key_id, tenant_id=principal.tenant_id, now=now
        )
    return [visit.id for visit in visits]


async def end_any_visit(sessions: Sessions, principal: Principal, visit_id: UUID, *, now: datetime) -> None:
    """End anybody's visit. Raises Forbidden unless a platform administrator asks, and NotFound."""
    principal.require("platform-admin")
    async with sessions.begin() as session:
        visit = await session.scalar(all_visits(now=now).where(Visit.id == visit_id))
        if visit is None:
            raise NotFound("there is no such visit; it may have ended")
        holder_id = visit.key_id or visit.person_id
        await delete_visits(session, principal, [visit], object_id=holder_id, tenant_id=principal.tenant_id, now=now)


async def end_all_visits(sessions: Sessions, principal: Principal, own: UUID, *, now: datetime) -> None:
    """End everybody's visits except `own`. Raises Forbidden unless a platform administrator asks."""
    principal.require("platform-admin")
    async with sessions.begin() as session:
        visits = list(await session.scalars(all_visits(now=now).where(Visit.id != own)))
        await delete_visits(session, principal, visits, object_id="all", tenant_id=principal.tenant_id, now=now)


async def delete_visits(
    session: AsyncSession,
    principal: Principal | None,
    visits: Sequence[Visit],
    *,
    object_id: object,
    tenant_id: UUID | None,
    now: datetime,
) -> None:
    """`principal` None: the identity provider ends the visits."""
    for visit in visits:
        await session.delete(visit)
    if visits:
        await record(
            session,
            principal,
            "visit.end",
            object_id=object_id,
            tenant_id=tenant_id,
            now=now,
            detail={"num_visits": len(visits)} | ({} if principal else {"by": "identity provider"}),
        )


def _is_of(holder_id: UUID) -> ColumnElement[bool]:
    return or_(Visit.key_id == holder_id, Visit.person_id == holder_id)
