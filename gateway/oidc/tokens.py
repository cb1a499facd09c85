"""Checks tokens that the provider signed: each must be for us, from the provider, valid now and properly signed."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import jwt

from gateway.oidc.errors import TokenRefused
from gateway.oidc.signing_keys import SigningKeys

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only asymmetric ones: with a symmetric one, the public key would be a secret that everybody knows."""
LEEWAY_S = 60
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_MAX_TOKEN_CHARS = 64 * 1024
_WORDS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "its token has expired; look at the clocks of both machines"),
    (jwt.ImmatureSignatureError, "its token is not valid yet; look at the clocks of both machines"),
    (jwt.InvalidAudienceError, "its token is for another client"),
    (jwt.InvalidIssuerError, "its token is from another issuer"),
    (jwt.InvalidSignatureError, "its token is not signed by it"),
)

Claims = Mapping[str, Any]


class LogoutToken(NamedTuple):
    """Logs out one session of the provider, or all sessions of a person."""

    subject: str | None
    provider_session: str | None
    until: datetime
    """Visits that began until then end: the token's issue time plus LEEWAY_S, by which clocks may differ."""


class Tokens:
    def __init__(self, keys: SigningKeys, *, issuer: str, client_id: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._client_id = client_id

    async def check_id_token(self, token: str, *, nonce: str, access_token: str | None) -> Claims:
        """Raises TokenRefused, ProviderFailed."""
        claims, algorithm = await self._signed(token, required=("iss", "sub", "aud", "exp", "iat"))
        if not claims["sub"] or len(claims["sub"]) > 255:
            raise TokenRefused("its token does not say who you are (`sub`)")
        self._check_party(claims)
        if not _is_same(claims.get("nonce"), nonce):
            raise TokenRefused("its token answers another login (`nonce`)")
        at_hash = claims.get("at_hash")
        if at_hash is not None and not _is_same(at_hash, _half_hash(access_token or "", algorithm)):
            raise TokenRefused("its token belongs to another access token (`at_hash`)")
        return claims

    async def check_logout_token(self, token: str) -> LogoutToken:
        """Check it as OpenID Connect Back-Channel Logout 1.0 requires. Raises TokenRefused, ProviderFailed."""
        claims, _ = await self._signed(token, required=("iss", "aud", "exp", "iat", "jti", "events"))
        events = claims["events"]
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict):
            raise TokenRefused("it is no logout token (`events`)")
        if "nonce" in claims:
            raise TokenRefused("a logout token has no `nonce`: this is one of another kind")
        subject, provider_session = claims.get("sub"), claims.get("sid")
        if not isinstance(provider_session, str | None) or not (subject or provider_session):
            raise TokenRefused("it does not say who leaves (`sub`, `sid`)")
        until = max(0, int(claims["iat"])) + LEEWAY_S
        return LogoutToken(subject, provider_session, datetime.fromtimestamp(until, UTC))

    async def _signed(self, token: str, *, required: tuple[str, ...]) -> tuple[Claims, str]:
        try:
            if len(token) > _MAX_TOKEN_CHARS:
                raise jwt.DecodeError
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise TokenRefused("its token is not signed in a way that is safe here (`alg`)")
            key = await self._keys.key(key_id, algorithm)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._client_id,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": list(required)},
            )
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"its token lacks the claim `{error.claim}`") from error
        except (jwt.PyJWTError, ValueError) as error:
            words = next((words for kind, words in _WORDS if isinstance(error, kind)), "its token cannot be read")
            raise TokenRefused(words) from error
        return claims, algorithm

    def _check_party(self, claims: Claims) -> None:
        """`azp` names the client that a token with several audiences was made for."""
        audience, party = claims["aud"], claims.get("azp")
        is_shared = isinstance(audience, list) and len(audience) > 1
        if (is_shared or party is not None) and party != self._client_id:
            raise TokenRefused("its token was made for another client (`azp`)")


def _half_hash(access_token: str, algorithm: str) -> str:
    digest = hashlib.new("sha512" if algorithm == "EdDSA" else f"sha{algorithm[2:]}", access_token.encode()).digest()
    return base64.urlsafe_b64encode(digest[: len(digest) // 2]).decode().rstrip("=")


def _is_same(told: object, wanted: str) -> bool:
    return isinstance(told, str) and hmac.compare_digest(told.encode(), wanted.encode())
