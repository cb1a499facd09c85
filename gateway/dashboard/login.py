"""Logging in with a key, and out."""

import math
import time
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.cookies import COOKIE, LIFETIME, SessionSigner
from gateway.dashboard.links import HOME, LOGIN, own_path
from gateway.dashboard.login_brake import FailedLogins
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import TOKEN, Typed, is_own_form, read_typed
from gateway.dashboard.visitors import address_of, log_in, principal_of, session_of
from gateway.domain.keys.secret import has_own_format
from gateway.domain.visits.service import end_visit
from gateway.http.errors import BodyTooLarge, Forbidden, Unauthenticated, Unavailable
from gateway.services import ServicesDep


class LoginViews:
    def __init__(self, signer: SessionSigner) -> None:
        self._signer = signer
        self._failed = FailedLogins()

    async def page(self, request: Request, services: ServicesDep, next: str = HOME) -> Response:
        now = utc_now()
        visit = session_of(request, self._signer, now=now)
        if visit and await principal_of(services.sessions, visit, address=address_of(request), now=now):
            return RedirectResponse(own_path(next), 303)
        return render("login.html", problem="", next=own_path(next))

    async def log_in(self, request: Request, services: ServicesDep) -> Response:
        form = await _form(request)
        next = own_path(form.text("next") or HOME)
        if not is_own_form(request):
            return _refused(next, 403, "Please log in on this page itself.")
        client = address_of(request)
        key = form.text("key")
        wait_s = self._failed.wait_s(client, now=time.monotonic())
        if wait_s > 0 and not has_own_format(key):
            return _braked(next, wait_s)
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
            self._failed.note(client, now=time.monotonic())
            if wait_s > 0:
                return _braked(next, wait_s)
            return _refused(next, 401, "This key is wrong or was revoked." if key else "Enter an API key.")
        except (Forbidden, Unavailable) as error:
            return _refused(next, error.status, f"{error.message[:1].upper()}{error.message[1:]}.")
        response = RedirectResponse(next, 303)
        response.set_cookie(
            COOKIE,
            self._signer.seal(visit),
            max_age=int(LIFETIME.total_seconds()),
            path=HOME,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def log_out(self, request: Request, services: ServicesDep) -> Response:
        visit = session_of(request, self._signer, now=utc_now())
        token = (await _form(request)).text(TOKEN)
        if visit and not (is_own_form(request) and self._signer.is_form_token(token, visit)):
            return RedirectResponse(HOME, 303)
        if visit:
            await end_visit(services.sessions, visit.key_id, visit.visit_id)
        return to_login()


def to_login(page: str = HOME) -> Response:
    """`page` is shown after it. A cookie that says nothing any more is forgotten."""
    response = RedirectResponse(LOGIN if page == HOME else f"{LOGIN}?next={quote(page)}", 303)
    response.delete_cookie(COOKIE, path=HOME)
    return response


async def _form(request: Request) -> Typed:
    """What is too large for a key has none."""
    try:
        return await read_typed(request)
    except BodyTooLarge:
        return Typed()


def _braked(next: str, wait_s: float) -> Response:
    return _refused(next, 429, f"Too many wrong keys. Try again in {math.ceil(wait_s)} s.", wait_s)


def _refused(next: str, status: int, problem: str, retry_after_s: float = 0) -> Response:
    headers = {"Retry-After": str(math.ceil(retry_after_s))} if retry_after_s else None
    return render("login.html", status=status, headers=headers, problem=problem, next=next)
