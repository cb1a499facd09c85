"""Choosing the time zone that times are shown in."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.dashboard.forms import back_to
from gateway.dashboard.links import own_path
from gateway.dashboard.pages import EVERYBODY, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.dashboard.zones import keep_zone, zone_named, zone_names
from gateway.http.errors import InvalidRequest
from gateway.services import Services


async def show_zones(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    standing = {"zone": visitor.zone.key, "next": own_path(request.query_params.get("next", ""))}
    return render("zone.html", visitor=visitor, form=Form(typed, standing), zones=zone_names())


async def choose_zone(request: Request, services: Services, visitor: Visitor, typed: Typed) -> RedirectResponse:
    zone = zone_named(typed.text("zone"))
    if zone is None:
        raise InvalidRequest("there is no such time zone; choose one of the list", param="zone")
    response = back_to(own_path(typed.text("next")), "zone")
    keep_zone(response, zone, is_secure=request.url.scheme == "https")
    return response


PAGES = (FormPage("/zone", show_zones, choose_zone, who=EVERYBODY),)
