"""`/dashboard` and its login. Everything here answers with pages, errors included."""

import math
import time
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.cookies import COOKIE, LIFETIME, SessionSigner
from gateway.dashboard.login_brake import FailedLogins
from gateway.dashboard.names import names_for
from gateway.dashboard.page import DEFAULT_METRIC, METRICS, Page, gather_page
from gateway.dashboard.ranges import DEFAULT_RANGE, RANGES
from gateway.dashboard.rendering import render, stylesheet
from gateway.dashboard.visitors import log_in, principal_of, session_of
from gateway.domain.keys.secret import has_own_format
from gateway.domain.principal import Principal
from gateway.http.errors import Forbidden, Unauthenticated, Unavailable
from gateway.services import ServicesDep

_HOME, _LOGIN = "/dashboard", "/dashboard/login"
_MAX_FORM_BYTES = 8192


def dashboard_router(*, pepper: str) -> APIRouter:
    """`pepper` signs the session cookies, through keys derived from it."""
    router = APIRouter(prefix="/dashboard", include_in_schema=False)
    views = _Views(SessionSigner(pepper))
    router.add_api_route("", views.home, methods=["GET"])
    router.add_api_route("/login", views.login_page, methods=["GET"])
    router.add_api_route("/login", views.login, methods=["POST"])
    router.add_api_route("/logout", views.logout, methods=["POST"])
    router.add_api_route("/style.css", stylesheet, methods=["GET"])
    return router


class _Views:
    def __init__(self, signer: SessionSigner) -> None:
        self._signer = signer
        self._failed = FailedLogins()

    async def home(
        self,
        request: Request,
        services: ServicesDep,
        range: str = DEFAULT_RANGE,
        metric: str = DEFAULT_METRIC,
        tenant: str = "",
    ) -> Response:
        visit = session_of(request, self._signer, now=utc_now())
        principal = await principal_of(services.sessions, visit) if visit else None
        if visit is None or principal is None:
            return _to(_LOGIN, forget=visit is not None)
        chosen, measure = RANGES.get(range, RANGES[DEFAULT_RANGE]), METRICS.get(metric, METRICS[DEFAULT_METRIC])
        names = await names_for(services.sessions, principal)
        tenant_id = _shown_tenant(principal, tenant, names.tenants)
        page: Page | None = None
        try:
            page = await gather_page(services.usage, chosen, measure, tenant_id=tenant_id, names=names, now=utc_now())
        except Unavailable as error:
            problem, status = error.message, error.status
        else:
            problem, status = "", 200
        return render(
            "home.html",
            status=status,
            page=page,
            problem=problem,
            principal=principal,
            chosen=chosen,
            metric=measure,
            ranges=RANGES.values(),
            metrics=METRICS.values(),
            names=names,
            tenant_id=tenant_id,
            form_token=self._signer.form_token(visit),
        )

    async def login_page(self, request: Request, services: ServicesDep) -> Response:
        visit = session_of(request, self._signer, now=utc_now())
        if visit and await principal_of(services.sessions, visit):
            return _to(_HOME)
        return render("login.html", problem="")

    async def login(self, request: Request, services: ServicesDep) -> Response:
        if not _is_own_form(request):
            return render("login.html", status=403, problem="Please log in on this page itself.")
        client = request.client.host if request.client else ""
        key = (await _form(request)).get("key", "").strip()
        wait_s = self._failed.wait_s(client, now=time.monotonic())
        if wait_s > 0 and not has_own_format(key):
            return _braked(wait_s)
        try:
            visit = await log_in(services.keyring, key, now=utc_now())
        except Unauthenticated:
            self._failed.note(client, now=time.monotonic())
            if wait_s > 0:
                return _braked(wait_s)
            return _refused(401, "This key is wrong or was revoked." if key else "Enter an API key.")
        except (Forbidden, Unavailable) as error:
            return _refused(error.status, f"{error.message[:1].upper()}{error.message[1:]}.")
        return self._welcome(request, self._signer.seal(visit))

    async def logout(self, request: Request) -> Response:
        visit = session_of(request, self._signer, now=utc_now())
        token = (await _form(request)).get("token", "")
        if visit and not (_is_own_form(request) and self._signer.is_form_token(token, visit)):
            return _to(_HOME)
        return _to(_LOGIN, forget=True)

    def _welcome(self, request: Request, cookie: str) -> Response:
        response = _to(_HOME)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(LIFETIME.total_seconds()),
            path=_HOME,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response


def _shown_tenant(principal: Principal, asked: str, names: Mapping[str, str]) -> str | None:
    """None: all of them. A tenant's own keys see it and nothing else, whatever the URL says."""
    if not principal.is_platform_admin:
        return str(principal.tenant_id)
    return asked if asked in names else None


def _is_own_form(request: Request) -> bool:
    """Browsers tell where a form came from; what is not a browser cannot be tricked into sending one."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            return {}
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}


def _to(path: str, *, forget: bool = False) -> RedirectResponse:
    response = RedirectResponse(path, 303)
    if forget:
        response.delete_cookie(COOKIE, path=_HOME)
    return response


def _braked(wait_s: float) -> Response:
    return _refused(429, f"Too many wrong keys. Try again in {math.ceil(wait_s)} s.", wait_s)


def _refused(status: int, problem: str, retry_after_s: float = 0) -> Response:
    headers = {"Retry-After": str(math.ceil(retry_after_s))} if retry_after_s else None
    return render("login.html", status=status, headers=headers, problem=problem)
