"""Logging out at the provider, too; and back-channel logout, by which the provider reports that somebody logged out."""

import msgspec
from fastapi import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.oidc.login import configured
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import read_typed
from gateway.domain.people.service import end_visits_at_provider, id_token_of
from gateway.domain.visits.models import Visit
from gateway.http.errors import GatewayError, InvalidRequest
from gateway.oidc.errors import ProviderFailed
from gateway.services import Services, ServicesDep

_NO_STORE = {"Cache-Control": "no-store"}


async def leave_provider(services: Services, visit: Visit | None) -> Response | None:
    """The page that leads to the provider's logout. None for a key's visit, or if the provider has none or fails."""
    if visit is None or visit.person_id is None or services.oidc is None:
        return None
    try:
        url = await services.oidc.end_session_url(id_token_of(visit, peppers=services.settings.peppers))
    except ProviderFailed:
        return None
    if url is None:
        return None
    # Not a redirect: the CSP's `form-action` does not let a form of the console lead to another site.
    return render("oidc/logged_out.html", url=url, provider=services.oidc.name)


async def backchannel_logout(request: Request, services: ServicesDep) -> Response:
    """OpenID Connect Back-Channel Logout 1.0: answers 200 even if nobody was logged in any more."""
    try:
        oidc = configured(services)
        token = (await read_typed(request)).text("logout_token")
        if not token:
            raise InvalidRequest("send `logout_token`, in a form")
        told = await oidc.check_logout_token(token)
    except GatewayError as error:
        # The specification wants 400 for any problem with the token. After other statuses a provider may try again.
        status = 400 if error.status in (400, 403) else error.status
        body = msgspec.json.encode({"error": "invalid_request", "error_description": error.message})
        return Response(body, status, {**_NO_STORE, "content-type": "application/json"})
    await end_visits_at_provider(
        services.sessions,
        issuer=oidc.issuer,
        subject=told.subject,
        provider_session=told.provider_session,
        until=told.until,
        now=utc_now(),
    )
    return Response(status_code=200, headers=_NO_STORE)
