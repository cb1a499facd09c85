"""The authorization code flow with PKCE, from the link to the provider to the claims that it vouches for."""

import base64
import hashlib
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from gateway.http.outbound import Outbound, OutboundFailed
from gateway.oidc.errors import ProviderFailed, TokenRefused
from gateway.oidc.kept import Kept
from gateway.oidc.provider import MAX_BYTES, TOTAL_S, Provider, discover, parse
from gateway.oidc.signing_keys import SigningKeys
from gateway.oidc.tokens import Claims, LogoutToken, Tokens
from gateway.oidc_settings import OidcSettings

CALLBACK = "/dashboard/oidc/callback"
AFTER_LOGOUT = "/dashboard/login"


class _Granted(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None


class _Refused(msgspec.Struct, frozen=True):
    error: str = ""


class Identity(NamedTuple):
    claims: Claims
    id_token: str


class OidcClient:
    """Call `close` at the end."""

    def __init__(self, settings: OidcSettings, issuer: str) -> None:
        self._settings = settings
        self._outbound = Outbound(
            allowed_private=settings.oidc_private_networks, total_s=TOTAL_S, max_answer_bytes=MAX_BYTES
        )
        self._provider = Kept(lambda: discover(self._outbound, issuer))
        self._keys = SigningKeys(self._outbound, self._provider)
        self._tokens = Tokens(self._keys, issuer=issuer, client_id=settings.oidc_client_id)
        self.issuer = issuer
        self.name = settings.oidc_name

    async def close(self) -> None:
        await self._outbound.close()

    async def check(self) -> None:
        """Check that the provider answers, names our issuer and publishes keys. Raises ProviderFailed."""
        await self._keys.check()

    async def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Raises ProviderFailed."""
        provider = await self._provider.get()
        return _with_query(
            provider.authorization_endpoint,
            response_type="code",
            client_id=self._settings.oidc_client_id,
            redirect_uri=self._own(CALLBACK),
            scope=" ".join(self._settings.oidc_scopes),
            state=state,
            nonce=nonce,
            code_challenge=_challenge(verifier),
            code_challenge_method="S256",
        )

    async def redeem(self, code: str, *, verifier: str, nonce: str) -> Identity:
        """Raises ProviderFailed, TokenRefused."""
        provider = await self._provider.get()
        granted = await self._exchange(provider, code, verifier)
        claims = await self._tokens.check_id_token(granted.id_token, nonce=nonce, access_token=granted.access_token)
        return Identity(claims, granted.id_token)

    async def check_logout_token(self, token: str) -> LogoutToken:
        """Raises TokenRefused, ProviderFailed."""
        return await self._tokens.check_logout_token(token)

    async def end_session_url(self, id_token: str | None) -> str | None:
        """The URL where the browser logs out at the provider, too; None: it has none. Raises ProviderFailed."""
        provider = await self._provider.get()
        if provider.end_session_endpoint is None:
            return None
        hint = {} if id_token is None else {"id_token_hint": id_token}
        return _with_query(
            provider.end_session_endpoint,
            client_id=self._settings.oidc_client_id,
            post_logout_redirect_uri=self._own(AFTER_LOGOUT),
            **hint,
        )

    async def _exchange(self, provider: Provider, code: str, verifier: str) -> _Granted:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._own(CALLBACK),
            "code_verifier": verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        credentials, authorization = self._credentials(provider)
        body = urlencode(fields | credentials).encode()
        try:
            answer = await self._outbound.post(provider.token_endpoint, body, headers | authorization)
        except OutboundFailed as error:
            raise ProviderFailed(f"its token endpoint cannot be used: {error}") from error
        if answer.status != 200:
            raise _refusal(answer.status, answer.body)
        return parse(answer.body, _Granted, what="what its token endpoint answered")

    def _credentials(self, provider: Provider) -> tuple[dict[str, str], dict[str, str]]:
        """The client's credentials, as form fields and as headers."""
        client_id, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        if secret is None:
            return {"client_id": client_id}, {}
        methods = provider.token_endpoint_auth_methods_supported
        if "client_secret_basic" not in methods and "client_secret_post" in methods:
            return {"client_id": client_id, "client_secret": secret.get_secret_value()}, {}
        both = f"{quote(client_id, safe='')}:{quote(secret.get_secret_value(), safe='')}"
        return {}, {"authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}

    def _own(self, path: str) -> str:
        return f"{self._settings.public_url}{path}"


def _refusal(status: int, body: bytes) -> ProviderFailed | TokenRefused:
    try:
        told = msgspec.json.decode(body, type=_Refused).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = ""
    if told == "invalid_grant":
        return TokenRefused("it does not take the code: it was used already, or has expired")
    reason = f" ({told[:60]})" if told else ""
    return ProviderFailed(f"its token endpoint answers {status}{reason}; the log of the provider says why")


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _with_query(url: str, **fields: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(fields)}"
