"""The console: which path shows which page. Everything here answers with pages, errors included."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard import (
    accounts,
    adapter_forms,
    adapters,
    audit,
    fleet,
    invoice_actions,
    invoices,
    keys,
    one_request,
    overview,
    playground,
    price_changes,
    price_forms,
    prices,
    reconciliation,
    refused_requests,
    request_list,
    settings,
    tenants,
    tiers,
    users,
    visits,
    zone_page,
)
from gateway.dashboard.assets import serve_asset
from gateway.dashboard.cookies import SessionSigner
from gateway.dashboard.forms import ended_page, problem_page, submit, submit_upload
from gateway.dashboard.health.page import PAGES as HEALTH_PAGES
from gateway.dashboard.login import LoginViews, to_login
from gateway.dashboard.oidc.login import OidcViews
from gateway.dashboard.oidc.logout import backchannel_logout
from gateway.dashboard.pages import AnyPage, FormPage, Page, UploadPage, Who
from gateway.dashboard.typed import Typed, is_own_form
from gateway.dashboard.visitors import Place, Visitor, visitor_of
from gateway.http.errors import GatewayError, NotFound
from gateway.http.forms import is_form
from gateway.peppers import Peppers
from gateway.services import Services, ServicesDep

PAGES: tuple[AnyPage, ...] = (
    *overview.PAGES,
    *request_list.PAGES,
    *refused_requests.PAGES,
    *one_request.PAGES,
    *tenants.PAGES,
    *keys.PAGES,
    *users.PAGES,
    *tiers.PAGES,
    *adapter_forms.PAGES,
    *adapters.PAGES,
    *fleet.PAGES,
    *playground.PAGES,
    *invoice_actions.PAGES,
    *invoices.PAGES,
    *accounts.PAGES,
    *prices.PAGES,
    *price_forms.PAGES,
    *price_changes.PAGES,
    *reconciliation.PAGES,
    *audit.PAGES,
    *HEALTH_PAGES,
    *settings.PAGES,
    *visits.PAGES,
    *zone_page.PAGES,
)
"""The navigation shows them in this order."""

Handler = Callable[[Request, Services, Visitor], Awaitable[Response]]


def dashboard_router(*, peppers: Peppers) -> APIRouter:
    """`peppers` sign the session cookies, through keys derived from them."""
    router = APIRouter(prefix="/dashboard", include_in_schema=False)
    signer = SessionSigner(peppers)
    login = LoginViews(signer)
    router.add_api_route("/login", login.page, methods=["GET"])
    router.add_api_route("/login", login.log_in, methods=["POST"])
    router.add_api_route("/logout", login.log_out, methods=["POST"])
    people = OidcViews(signer)
    router.add_api_route("/oidc/login", people.begin, methods=["GET"])
    router.add_api_route("/oidc/callback", people.end, methods=["GET"])
    router.add_api_route("/oidc/backchannel-logout", backchannel_logout, methods=["POST"])
    router.add_api_route("/static/{name}", serve_asset, methods=["GET"])
    for page in (*PAGES, Page("/{rest:path}", _show_nothing)):
        shown = page.view if isinstance(page, Page) else _shown(page)
        router.add_api_route(page.path, _for_visitors(shown, page.who, signer), methods=["GET"])
        if not isinstance(page, Page):
            router.add_api_route(page.path, _for_visitors(_sent(page), page.who, signer), methods=["POST"])
    return router


def _for_visitors(handler: Handler, who: Who, signer: SessionSigner) -> Callable[..., Awaitable[Response]]:
    async def answer(request: Request, services: ServicesDep) -> Response:
        visitor = await visitor_of(request, services.sessions, signer, places=places_of, now=utc_now())
        if visitor is None and request.method == "POST" and is_own_form(request) and not is_form(request.scope):
            return await ended_page(request)
        if visitor is None:
            query = f"?{request.url.query}" if request.url.query else ""
            return to_login(request.url.path + query)
        try:
            visitor.principal.require(*who)
            return await handler(request, services, visitor)
        except GatewayError as error:
            asked = visitor.asked(request) if request.method == "GET" and error.status in (400, 404) else {}
            return problem_page(visitor, error, asked=asked)

    return answer


def _shown(page: FormPage | UploadPage) -> Handler:
    async def show(request: Request, services: Services, visitor: Visitor) -> Response:
        return await page.show(request, services, visitor, Typed())

    return show


def _sent(page: FormPage | UploadPage) -> Handler:
    async def send(request: Request, services: Services, visitor: Visitor) -> Response:
        if isinstance(page, UploadPage):
            return await submit_upload(page, request, services, visitor)
        return await submit(page, request, services, visitor)

    return send


def places_of(scopes: frozenset[str]) -> list[Place]:
    """The navigation for a visitor with these scopes."""
    return [Place(f"/dashboard{page.path}", page.label) for page in PAGES if page.label and _is_for(page, scopes)]


def _is_for(page: AnyPage, scopes: frozenset[str]) -> bool:
    also = page.also if isinstance(page, FormPage) else None
    return not scopes.isdisjoint(page.who) and (also is None or also in scopes)


async def _show_nothing(request: Request, services: Services, visitor: Visitor) -> Response:
    raise NotFound("there is no such page")
