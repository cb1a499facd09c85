"""Logging in with a key, and logging out. People are sent to the identity provider (`oidc`)."""

import math
import time
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.cookies import COOKIE, SessionSigner, set_session
from gateway.dashboard.links import HOME, LOGIN, own_path
from gateway.dashboard.login_brake import FailedLogins
from gateway.dashboard.oidc.logout import leave_provider
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import TOKEN, Typed, is_own_form, read_typed
from gateway.dashboard.visitors import address_of, log_in, principal_of, session_of
from gateway.domain.keys.secret import has_own_format
from gateway.domain.visits.service import end_visit
from gateway.http.errors import BodyTooLarge, Forbidden, Unauthenticated, Unavailable
from gateway.services import Services, ServicesDep


class LoginViews:
    def __init__(self, signer: SessionSigner) -> None:
        self._signer = signer
        self._failed = FailedLogins()

    async def page(self, request: Request, services: ServicesDep, next: str = HOME) -> Response:
        now = utc_now()
        visit = session_of(request, self._signer, now=now)
        if visit and await principal_of(services.sessions, visit, address=address_of(request), now=now):
            return RedirectResponse(own_path(next), 303)
        return _login_page(services, own_path(next))

    async def log_in(self, request: Request, services: ServicesDep) -> Response:
        form = await _form(request)
        next = own_path(form.text("next") or HOME)
        if not is_own_form(request):
            return _refused(services, next, 403, "Please log in on this page itself.")
        client = address_of(request)
        key = form.text("key")
        wait_s = self._failed.wait_s(client, now=time.monotonic())
        if wait_s > 0 and not has_own_format(key):
            return _braked(services, next, wait_s)
        try:
            visit = await log_in(
                services.keyring,
                services.sessions,
                key,
                address=client,
                browser=request.headers.get("user-agent", ""),
                now=utc_now(),
            )
        except Unauthenticated:
            if key and not has_own_format(key):
                # Nobody guesses a key of our own form, so that wrong ones are no reason to brake anybody.
                self._failed.note(client, now=time.monotonic())
            if wait_s > 0:
                return _braked(services, next, wait_s)
            return _refused(services, next, 401, "This key is wrong or was revoked." if key else "Enter an API key.")
        except (Forbidden, Unavailable) as error:
            return _refused(services, next, error.status, f"{error.message[:1].upper()}{error.message[1:]}.")
        response = RedirectResponse(next, 303)
        set_session(response, self._signer, visit, now=utc_now(), is_secure=request.url.scheme == "https")
        return response

    async def log_out(self, request: Request, services: ServicesDep) -> Response:
        visit = session_of(request, self._signer, now=utc_now())
        token = (await _form(request)).text(TOKEN)
        if visit and not (is_own_form(request) and self._signer.is_form_token(token, visit)):
            return RedirectResponse(HOME, 303)
        if visit:
            ended = await end_visit(services.sessions, visit.holder_id, visit.visit_id)
            further = await leave_provider(services, ended)
            if further is not None:
                further.delete_cookie(COOKIE, path=HOME)
                return further
        return to_login()


def to_login(page: str = HOME) -> Response:
    """Redirect to the login, which leads on to `page`. The session cookie, no longer valid, is deleted."""
    response = RedirectResponse(LOGIN if page == HOME else f"{LOGIN}?next={quote(page)}", 303)
    response.delete_cookie(COOKIE, path=HOME)
    return response


async def _form(request: Request) -> Typed:
    """The sent form; empty if it is too large, so that it holds no key."""
    try:
        return await read_typed(request)
    except BodyTooLarge:
        return Typed()


def _braked(services: Services, next: str, wait_s: float) -> Response:
    return _refused(services, next, 429, f"Too many wrong keys. Try again in {math.ceil(wait_s)} s.", wait_s)


def _refused(services: Services, next: str, status: int, problem: str, retry_after_s: float = 0) -> Response:
    headers = {"Retry-After": str(math.ceil(retry_after_s))} if retry_after_s else None
    return _login_page(services, next, status=status, headers=headers, problem=problem)


def _login_page(
    services: Services,
    next: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    problem: str = "",
) -> Response:
    provider = services.oidc.name if services.oidc else ""
    return render("login.html", status=status, headers=headers, problem=problem, next=next, provider=provider)
