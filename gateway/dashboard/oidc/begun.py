"""A login in progress, sealed in a cookie of the browser that began it. Only that browser can complete it."""

import base64
import binascii
import re
import secrets
from datetime import datetime, timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.domain.sealing import CannotUnseal, seal, unseal
from gateway.peppers import Peppers

ENDS_AFTER = timedelta(minutes=10)
PATH = "/dashboard/oidc"
_PURPOSE = b"console login begun"
_STATE = re.compile(r"[A-Za-z0-9_-]{43}")


class Begun(msgspec.Struct, frozen=True, array_like=True):
    state: str
    nonce: str
    verifier: str
    next: str
    """The page shown after the login."""
    until: datetime


def begin(next: str, *, now: datetime) -> Begun:
    """State, nonce and verifier have 256 random bits each."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Begun(state, nonce, verifier, next, now + ENDS_AFTER)


def remember(response: Response, begun: Begun, *, is_secure: bool, pepper: str) -> None:
    """Each login has a cookie of its own, so that logins in two tabs do not disturb each other. The cookie is `lax`,
    since the provider is another site."""
    sealed = seal(msgspec.json.encode(begun), purpose=_PURPOSE, bound_to=begun.state.encode(), pepper=pepper)
    response.set_cookie(
        _name(begun.state),
        base64.urlsafe_b64encode(sealed).decode(),
        max_age=int(ENDS_AFTER.total_seconds()),
        path=PATH,
        httponly=True,
        samesite="lax",
        secure=is_secure,
    )


def forget(response: Response, begun: Begun) -> None:
    response.delete_cookie(_name(begun.state), path=PATH)


def begun_here(request: Request, state: str, *, peppers: Peppers, now: datetime) -> Begun | None:
    """None if this browser did not begin the login, or began it longer ago than ENDS_AFTER."""
    if _STATE.fullmatch(state) is None:
        return None
    try:
        sealed = base64.urlsafe_b64decode(request.cookies.get(_name(state), "").encode())
        opened = unseal(sealed, purpose=_PURPOSE, bound_to=state.encode(), peppers=peppers)
    except (binascii.Error, ValueError, CannotUnseal):
        return None
    begun = msgspec.json.decode(opened, type=Begun)
    return begun if begun.until > now else None


def _name(state: str) -> str:
    return f"tiergate_login_{state[:16]}"
