"""A new key on its way to the page that shows it, sealed in a cookie that lasts a minute.

The form that makes a key answers with a redirect, so that reloading the page does not make another key.
"""

import base64
import binascii
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.keys import NewKeyView, show_key
from gateway.clock import utc_now
from gateway.dashboard.forms import back_to, see_other
from gateway.dashboard.keys.listing import PATH
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.playground_code import snippets
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.principal import SEES_SPENDING
from gateway.domain.sealing import CannotUnseal, seal, unseal
from gateway.peppers import Peppers
from gateway.services import Services

COOKIE = "tiergate_new_key"
SHOWN_FOR = timedelta(minutes=1)
_PURPOSE = b"console new key"
_FIRST = {"model": "auto", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}


class _Made(msgspec.Struct, frozen=True, array_like=True):
    key: str
    until: datetime


def lead_to_secret(request: Request, services: Services, visitor: Visitor, made: NewKeyView) -> Response:
    """Redirect to the page that shows the key. The key is in no URL, and only this visit's page can read the cookie."""
    place = f"{PATH}/{made.id}/secret"
    response = see_other(place)
    response.set_cookie(
        COOKIE,
        seal_key(
            made.key, visit_id=visitor.visit_id, key_id=made.id, pepper=services.settings.peppers.current, now=utc_now()
        ),
        max_age=int(SHOWN_FOR.total_seconds()),
        path=place,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


async def show_secret(request: Request, services: Services, visitor: Visitor) -> Response:
    """Shows the key for a minute after it was made; later redirects to the key's page."""
    key_id = path_id(request, "key_id")
    key = await show_key(key_id, visitor.principal, services.sessions)
    secret = unseal_key(
        request.cookies.get(COOKIE, ""),
        visit_id=visitor.visit_id,
        key_id=key_id,
        peppers=services.settings.peppers,
        now=utc_now(),
    )
    if secret is None:
        return back_to(f"{PATH}/{key_id}", "key-shown")
    return render(
        "keys/secret.html",
        visitor=visitor,
        key=key,
        secret=secret,
        path=f"{PATH}/{key_id}",
        base_url=f"{str(request.base_url).rstrip('/')}/v1",
        snippets=snippets(str(request.base_url).rstrip("/"), _FIRST) if "inference" in key.scopes else [],
        may_log_in=not set(SEES_SPENDING).isdisjoint(key.scopes),
    )


def seal_key(key: str, *, visit_id: UUID, key_id: UUID, pepper: str, now: datetime) -> str:
    sealed = seal(
        msgspec.json.encode(_Made(key, now + SHOWN_FOR)),
        purpose=_PURPOSE,
        bound_to=visit_id.bytes + key_id.bytes,
        pepper=pepper,
    )
    return base64.urlsafe_b64encode(sealed).decode()


def unseal_key(sealed: str, *, visit_id: UUID, key_id: UUID, peppers: Peppers, now: datetime) -> str | None:
    """None for a cookie of another visit or key, and after SHOWN_FOR."""
    try:
        opened = unseal(
            base64.urlsafe_b64decode(sealed.encode()),
            purpose=_PURPOSE,
            bound_to=visit_id.bytes + key_id.bytes,
            peppers=peppers,
        )
    except (binascii.Error, ValueError, CannotUnseal):
        return None
    made = msgspec.json.decode(opened, type=_Made)
    return made.key if made.until > now else None


PAGES = (Page("/keys/{key_id}/secret", show_secret, who=ADMINS),)
