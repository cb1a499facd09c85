"""The signed session cookie: which key or person is logged in, and until when. It does not hold the key."""

import base64
import binascii
import hmac
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from starlette.responses import Response

from gateway.dashboard.links import HOME
from gateway.peppers import Peppers

COOKIE = "tiergate_session"
LIFETIME = timedelta(hours=12)


class Session(msgspec.Struct, frozen=True, array_like=True):
    holder_id: UUID
    """The key, or the person."""
    prefix: str
    """The prefix by which the key is looked up; not secret. "" for a person."""
    expires_at: datetime
    visit_id: UUID
    """The visit's row says whether it still goes on."""

    @property
    def is_persons(self) -> bool:
        return self.prefix == ""


class SessionSigner:
    """Signs with the current pepper, and accepts signatures made with another."""

    def __init__(self, peppers: Peppers) -> None:
        # A separate key for each purpose, so that nothing signed for one passes for another.
        self._cookie_keys = [hmac.digest(each.encode(), b"dashboard session", "sha256") for each in peppers.all]
        self._form_keys = [hmac.digest(each.encode(), b"dashboard form", "sha256") for each in peppers.all]

    def seal(self, session: Session) -> str:
        payload = msgspec.json.encode(session)
        return f"{_encode(payload)}.{_encode(hmac.digest(self._cookie_keys[0], payload, 'sha256'))}"

    def unseal(self, cookie: str, *, now: datetime) -> Session | None:
        """None for a cookie that is not ours or has expired."""
        first, _, second = cookie.partition(".")
        try:
            payload, mac = _decode(first), _decode(second)
        except (binascii.Error, ValueError):
            return None
        if not any(hmac.compare_digest(mac, hmac.digest(key, payload, "sha256")) for key in self._cookie_keys):
            return None
        try:
            session = msgspec.json.decode(payload, type=Session)
        except msgspec.DecodeError:
            # A cookie of an older version.
            return None
        return session if session.expires_at > now else None

    def form_tokens(self, session: Session) -> tuple[str, ...]:
        """The tokens that prove that a form of this session came from our page. Forms carry the first, of the current
        pepper; those of other peppers are accepted."""
        payload = msgspec.json.encode(session)
        return tuple(_encode(hmac.digest(key, payload, "sha256")) for key in self._form_keys)

    def is_form_token(self, token: str, session: Session) -> bool:
        return is_one_of(token, self.form_tokens(session))


def is_one_of(token: str, right: tuple[str, ...]) -> bool:
    return any(hmac.compare_digest(token.encode(), each.encode()) for each in right)


def set_session(response: Response, signer: SessionSigner, session: Session, *, now: datetime, is_secure: bool) -> None:
    response.set_cookie(
        COOKIE,
        signer.seal(session),
        max_age=int((session.expires_at - now).total_seconds()),
        path=HOME,
        httponly=True,
        samesite="strict",
        secure=is_secure,
    )


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
