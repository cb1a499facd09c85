"""Taking back a price that is not in force yet, and pricing past usage anew."""

import time
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import prices as api
from gateway.billing.previews import BOUND_S, preview
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.numbers import places_of
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.prices import PATH
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.dashboard.zones import typed_moment
from gateway.domain.catalog import read_price_book
from gateway.http.errors import InvalidRequest, NotFound
from gateway.metering.windows import Window
from gateway.services import Services

_DELETE = {"price": api.remove_price, "surcharge": api.remove_surcharge, "discount": api.remove_discount}


async def ask_delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    kind = _kind(request)
    return confirmation(
        visitor,
        typed,
        title=f"Take back this {kind}?",
        text=f"The {kind} is not in force yet, and will never be. What is in force now stays.",
        button="Take it back",
        back=PATH,
        back_label="Back to the prices",
    )


async def delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    await _DELETE[_kind(request)](str(request.path_params["version"]), visitor.principal, services)
    return back_to(PATH, "taken_back")


async def show_rerate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    start = request.query_params.get("start", "")
    standing = {"start": ""}
    if start.isdecimal() and len(start) <= 10:
        standing["start"] = f"{datetime.fromtimestamp(int(start), UTC).astimezone(visitor.zone):%Y-%m-%dT%H:%M:%S}"
    return render("rerate.html", visitor=visitor, form=Form(typed, standing))


async def rerate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """First shows the difference. With `confirmed` it is written, as far as a few seconds (BOUND_S) allow."""
    draft = api.RerateDraft.model_validate(
        {
            "start": typed_moment(typed.text("start"), visitor.zone, param="start"),
            "end": typed_moment(typed.text("end"), visitor.zone, param="end"),
            "apply": True,
        }
    )
    if draft.start >= draft.end:
        raise InvalidRequest("the end must be after the start", param="end")
    if typed.text("confirmed") == "yes":
        return await _apply(services, visitor, typed, draft)
    async with services.sessions() as session:
        book = await read_price_book(session)
    found = await preview(services.rerating, book, Window(draft.start, draft.end))
    return render(
        "rerate_preview.html",
        visitor=visitor,
        form=Form(typed),
        found=found,
        differences=found.by_tenant.most_common(),
        places=places_of([found.old_nanousd, found.new_nanousd, *found.by_tenant.values()]),
        carried={name: typed.text(name) for name in ("start", "end")},
    )


async def _apply(services: Services, visitor: Visitor, typed: Typed, draft: api.RerateDraft) -> Response:
    began, num_changed, after = time.monotonic(), 0, typed.text("after") or None
    while True:
        page = await api.rerate(draft.model_copy(update={"after": after}), visitor.principal, services)
        num_changed, after = num_changed + page.num_changed, page.next
        if after is None:
            return back_to(PATH, "rerated")
        if time.monotonic() - began >= BOUND_S:
            carried = {name: typed.text(name) for name in ("start", "end")} | {"after": after}
            return render(
                "rerate_more.html", visitor=visitor, form=Form(typed), num_changed=num_changed, carried=carried
            )


def _kind(request: Request) -> str:
    kind = str(request.path_params["kind"])
    if kind not in _DELETE:
        raise NotFound("there is no such page")
    return kind


PAGES = (
    FormPage("/prices/rerate", show_rerate, rerate, who=OPERATORS),
    FormPage("/prices/{kind}/{version}/delete", ask_delete, delete, who=OPERATORS),
)
