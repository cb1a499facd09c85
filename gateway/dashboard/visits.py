"""Everybody's visits, for the platform's operators, who can end one or all of them."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import OPERATORS, FormPage, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.keys.models import ApiKey
from gateway.domain.people.models import Person
from gateway.domain.visits.models import Visit
from gateway.domain.visits.service import all_visits, end_all_visits, end_any_visit
from gateway.http.errors import NotFound
from gateway.services import Services

PATH = "/dashboard/settings/visits"
MAX_SHOWN = 500


async def show_visits(request: Request, services: Services, visitor: Visitor) -> Response:
    now = utc_now()
    async with services.sessions() as session:
        visits = list(await session.scalars(all_visits(now=now).limit(MAX_SHOWN)))
    return render(
        "visits.html",
        visitor=visitor,
        visits=visits,
        holders=await _holders(services, visits),
        max_shown=MAX_SHOWN,
        now=now,
    )


async def ask_end(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    visit_id = path_id(request, "visit_id")
    async with services.sessions() as session:
        visit = await session.scalar(all_visits(now=utc_now()).where(Visit.id == visit_id))
    if visit is None:
        raise NotFound("there is no such visit; it may have ended")
    [(name, _)] = (await _holders(services, [visit])).values()
    return confirmation(
        visitor,
        typed,
        title=f"End the visit of {name}?",
        text="It has to log in again there. The key or the account stays as it is.",
        button="End it",
        back=PATH,
        back_label="Back",
    )


async def end(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    await end_any_visit(services.sessions, visitor.principal, path_id(request, "visit_id"), now=utc_now())
    return back_to(PATH, "visit-ended")


async def ask_end_all(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return confirmation(
        visitor,
        typed,
        title="End everybody's visits?",
        text="Everybody but you has to log in again, with a key or at the identity provider.",
        button="End them all",
        back=PATH,
        back_label="Back",
    )


async def end_all(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    await end_all_visits(services.sessions, visitor.principal, visitor.visit_id, now=utc_now())
    return back_to(PATH, "ended")


async def _holders(services: Services, visits: Iterable[Visit]) -> dict[UUID, tuple[str, UUID]]:
    """Visit id -> (name of its key or person, the tenant's id)."""
    visits = list(visits)
    keys = select(ApiKey).where(ApiKey.id.in_({each.key_id for each in visits if each.key_id}))
    people = select(Person).where(Person.id.in_({each.person_id for each in visits if each.person_id}))
    async with services.sessions() as session:
        found = {key.id: (f"{key.name} ({key.prefix})", key.tenant_id) for key in await session.scalars(keys)}
        for person in await session.scalars(people):
            found[person.id] = (person.email or person.subject, person.tenant_id)
    holders = ((each.id, each.key_id or each.person_id) for each in visits)
    return {visit_id: found[holder_id] for visit_id, holder_id in holders if holder_id is not None}


PAGES = (
    Page("/settings/visits", show_visits, who=OPERATORS),
    FormPage("/settings/visits/end-all", ask_end_all, end_all, who=OPERATORS),
    FormPage("/settings/visits/{visit_id}/end", ask_end, end, who=OPERATORS),
)
