"""A person's login: it stores the person, with the rights that the identity provider gave, and begins a visit."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain import sealing
from gateway.domain.audit.service import record
from gateway.domain.people.models import Person, SpentLogin
from gateway.domain.people.queries import visiting_person
from gateway.domain.principal import LoggedIn, Principal, Scope
from gateway.domain.tenants.models import Tenant
from gateway.domain.visits.models import Visit
from gateway.domain.visits.service import add_visit, delete_visits, goes_on, prolong
from gateway.http.errors import Conflict, Forbidden
from gateway.peppers import Peppers
from protocol.ids import new_id

PURPOSE = b"console id token"


@dataclass(frozen=True)
class Admitted:
    """What the identity provider says of a person, and the scopes and the tenant that follow from it."""

    issuer: str
    subject: str
    email: str | None
    scopes: Sequence[Scope]
    tenant: str | None
    """The tenant's id or name; None: the platform's own tenant."""
    provider_session: str | None
    id_token: str


@dataclass(frozen=True)
class Terms:
    """The terms of a new visit."""

    address: str
    browser: str
    expires_at: datetime
    idle: timedelta


async def begin_persons_visit(
    sessions: Sessions, admitted: Admitted, terms: Terms, *, state: str, until: datetime, pepper: str, now: datetime
) -> Visit:
    """state: the login's, which this call spends; until: when the login would have expired.

    Raises Conflict for a login that is spent already, and Forbidden if the tenant is unknown or suspended.
    """
    async with sessions.begin() as session:
        await _spend(session, state, until=until, now=now)
        tenant = await _tenant(session, admitted.tenant)
        person = await _person(session, admitted, tenant, now=now)
        visit = _visit(person, admitted, terms, pepper=pepper, now=now)
        await add_visit(session, visit, now=now)
        principal = principal_of_person(person, tenant)
        detail = {"scopes": list(admitted.scopes)}
        await record(
            session, principal, "person.login", object_id=person.id, tenant_id=tenant.id, now=now, detail=detail
        )
    return visit


async def visiting_principal(sessions: Sessions, person_id: UUID, visit_id: UUID, *, now: datetime) -> Principal | None:
    """None once the visit has ended or the tenant is suspended. The call counts as activity in the visit."""
    async with sessions() as session:
        row = (await session.execute(visiting_person(person_id, visit_id, now=now))).one_or_none()
        if row is None:
            return None
        person, tenant, visit = row
        if prolong(visit, now=now):
            await session.commit()
    return principal_of_person(person, tenant)


def principal_of_person(person: Person, tenant: Tenant) -> Principal:
    return Principal(
        tenant.id,
        tenant.name,
        person.id,
        tenant.tier,
        frozenset(person.scopes),
        tenant.is_local_only,
        person=LoggedIn(person.id, person.subject, person.email),
    )


async def end_visits_at_provider(
    sessions: Sessions,
    *,
    issuer: str,
    subject: str | None,
    provider_session: str | None,
    until: datetime,
    now: datetime,
) -> int:
    """End the visits of the provider's session if it names one, else all of the person's. Returns how many.

    until: visits that began later go on, so that repeating an old logout has no effect.
    """
    query = (
        select(Person, Visit)
        .join(Visit, Visit.person_id == Person.id)
        .where(Person.issuer == issuer, goes_on(now), Visit.began_at <= until)
    )
    if subject is not None:
        query = query.where(Person.subject == subject)
    if provider_session is not None:
        query = query.where(Visit.provider_session == provider_session)
    async with sessions.begin() as session:
        found = (await session.execute(query)).all()
        for person in {row.Person for row in found}:
            visits = [row.Visit for row in found if row.Person is person]
            # Record our own id: the provider's subject of a person must not outlive the erasure of the tenant.
            await delete_visits(session, None, visits, object_id=person.id, tenant_id=person.tenant_id, now=now)
    return len(found)


def id_token_of(visit: Visit, *, peppers: Peppers) -> str | None:
    """None for a key's visit, or if the token was sealed under a pepper that we do not have."""
    if visit.sealed_id_token is None:
        return None
    try:
        opened = sealing.unseal(visit.sealed_id_token, purpose=PURPOSE, bound_to=visit.id.bytes, peppers=peppers)
    except sealing.CannotUnseal:
        return None
    return opened.decode()


async def _spend(session: AsyncSession, state: str, *, until: datetime, now: datetime) -> None:
    await session.execute(delete(SpentLogin).where(SpentLogin.expires_at <= now))
    try:
        async with session.begin_nested():
            session.add(SpentLogin(state_hash=hashlib.sha256(state.encode()).digest(), expires_at=until))
    except IntegrityError as error:
        raise Conflict("this login was used already") from error


async def _tenant(session: AsyncSession, asked: str | None) -> Tenant:
    found = await session.scalar(_tenant_called(asked))
    if found is None:
        raise Forbidden(
            "the platform has no tenant of its own yet; `tiergate admin-key` makes one"
            if asked is None
            else f"your account belongs to the tenant {asked[:80]!r}, which does not exist here"
        )
    if found.suspended_at is not None:
        raise Forbidden(f"the tenant {found.name!r} is suspended")
    return found


def _tenant_called(asked: str | None) -> Select[Tenant]:
    live = select(Tenant).where(Tenant.deleted_at.is_(None))
    if asked is None:
        return live.where(Tenant.is_platform)
    named = Tenant.name == asked
    try:
        return live.where(or_(Tenant.id == UUID(asked), named)).order_by(named).limit(1)
    except ValueError:
        return live.where(named)


async def _person(session: AsyncSession, admitted: Admitted, tenant: Tenant, *, now: datetime) -> Person:
    known = select(Person).where(Person.issuer == admitted.issuer, Person.subject == admitted.subject)
    said = {"email": admitted.email, "tenant_id": tenant.id, "scopes": list(admitted.scopes), "logged_in_at": now}
    person = await session.scalar(known)
    if person is None:
        person = Person(id=new_id(now), issuer=admitted.issuer, subject=admitted.subject, **said)
        try:
            async with session.begin_nested():
                session.add(person)
        except IntegrityError:
            # Two first logins of the person ran at the same time.
            person = (await session.scalars(known)).one()
    for name, value in said.items():
        setattr(person, name, value)
    await session.flush()
    return person


def _visit(person: Person, admitted: Admitted, terms: Terms, *, pepper: str, now: datetime) -> Visit:
    visit_id = new_id(now)
    return Visit(
        id=visit_id,
        person_id=person.id,
        began_at=now,
        expires_at=terms.expires_at,
        idle_s=int(terms.idle.total_seconds()),
        idle_until=now + terms.idle,
        address=terms.address,
        browser=terms.browser,
        provider_session=admitted.provider_session,
        sealed_id_token=sealing.seal(
            admitted.id_token.encode(), purpose=PURPOSE, bound_to=visit_id.bytes, pepper=pepper
        ),
    )
