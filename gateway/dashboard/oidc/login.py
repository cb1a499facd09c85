"""Logging in at the identity provider: the way there, and back with the identity that it vouches for."""

import logging
import math
import time
from datetime import timedelta

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from gateway.clock import utc_now
from gateway.dashboard.cookies import Session, SessionSigner, set_session
from gateway.dashboard.links import HOME, own_path
from gateway.dashboard.login_brake import FailedLogins
from gateway.dashboard.oidc.begun import Begun, begin, begun_here, forget, remember
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import address_of
from gateway.domain.people.roles import admitted
from gateway.domain.people.service import Terms, begin_persons_visit
from gateway.http.errors import Forbidden, GatewayError, InvalidRequest, LimitReached, NotFound
from gateway.oidc.client import OidcClient
from gateway.oidc.errors import ProviderFailed, TokenRefused
from gateway.services import Services, ServicesDep

_log = logging.getLogger(__name__)
_NOT_HERE = (
    "this login was not begun in this browser, was ended already, or took longer than ten minutes. Nothing was done; "
    "log in again"
)


class OidcViews:
    def __init__(self, signer: SessionSigner) -> None:
        self._signer = signer
        # Counts only failures for which the provider's token endpoint was asked.
        self._failed = FailedLogins(is_for_all=False)

    async def begin(self, request: Request, services: ServicesDep, next: str = HOME) -> Response:
        begun = begin(own_path(next), now=utc_now())
        try:
            oidc = configured(services)
            url = await oidc.authorization_url(state=begun.state, nonce=begun.nonce, verifier=begun.verifier)
        except GatewayError as error:
            return refused(services, error)
        response = RedirectResponse(url, 303)
        remember(response, begun, is_secure=_is_secure(request), pepper=services.settings.peppers.current)
        return response

    async def end(self, request: Request, services: ServicesDep) -> Response:
        """The provider sends the browser back here. A refused login leaves everything as it was, including a visit that
        is on in this browser."""
        asked, now = request.query_params, utc_now()
        begun = begun_here(request, asked.get("state", ""), peppers=services.settings.peppers, now=now)
        if begun is None:
            return refused(services, InvalidRequest(_NOT_HERE))
        try:
            self._brake(request)
            code = _code_of(request, configured(services))
            try:
                session = await self._visit(request, services, begun, code)
            except (TokenRefused, Forbidden):
                self._failed.note(address_of(request), now=time.monotonic())
                raise
        except GatewayError as error:
            response = refused(services, error)
        else:
            # The visit's cookie is `strict`: a redirect from the provider's site would not send it, a page of ours
            # does.
            response = render("oidc/logged_in.html", next=begun.next)
            set_session(response, self._signer, session, now=now, is_secure=_is_secure(request))
        forget(response, begun)
        return response

    def _brake(self, request: Request) -> None:
        wait_s = self._failed.wait_s(address_of(request), now=time.monotonic())
        if wait_s > 0:
            message = f"too many logins failed from your address; try again in {math.ceil(wait_s)} s"
            raise LimitReached(message, retry_after_s=wait_s, code="logins", extra_headers={})

    async def _visit(self, request: Request, services: Services, begun: Begun, code: str) -> Session:
        """Raises GatewayError."""
        oidc, settings = configured(services), services.settings
        identity = await oidc.redeem(code, verifier=begun.verifier, nonce=begun.nonce)
        now = utc_now()
        visit = await begin_persons_visit(
            services.sessions,
            admitted(identity.claims, settings, id_token=identity.id_token),
            Terms(
                address=address_of(request),
                browser=request.headers.get("user-agent", ""),
                expires_at=now + timedelta(seconds=settings.oidc_session_s),
                idle=timedelta(seconds=settings.oidc_idle_s),
            ),
            state=begun.state,
            until=begun.until,
            pepper=services.settings.peppers.current,
            now=now,
        )
        assert visit.person_id is not None
        return Session(visit.person_id, "", visit.expires_at, visit.id)


def configured(services: Services) -> OidcClient:
    """Raises NotFound if no identity provider is configured."""
    if services.oidc is None:
        raise NotFound("there is no login but by key here; TIERGATE_OIDC_ISSUER is not set")
    return services.oidc


def _code_of(request: Request, oidc: OidcClient) -> str:
    """The code with which the provider sent the browser back. Raises TokenRefused, or Forbidden if there is none."""
    asked = request.query_params
    if asked.get("iss", oidc.issuer) != oidc.issuer:
        raise TokenRefused("another provider than the configured one answered")
    if "error" in asked or not asked.get("code"):
        raise Forbidden(f"{oidc.name} did not log you in ({asked.get('error', 'it sent no code')[:60]})")
    return asked["code"]


def refused(services: Services, error: GatewayError) -> Response:
    """A page that shows the error. It logs nobody in and nobody out."""
    is_theirs = isinstance(error, ProviderFailed | TokenRefused)
    if is_theirs:
        _log.warning("a login by the identity provider was refused: %s", error.message)
    return render(
        "oidc/refused.html",
        status=error.status,
        headers=error.headers(),
        problem=error.message,
        is_theirs=is_theirs,
        provider=services.oidc.name if services.oidc else "",
    )


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
