"""The provider's description of itself at `/.well-known/openid-configuration`."""

from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from gateway.http.outbound import Outbound, OutboundFailed
from gateway.oidc.errors import ProviderFailed

MAX_BYTES = 256 * 1024
TOTAL_S = 5.0
T = TypeVar("T", bound=msgspec.Struct)


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


async def discover(outbound: Outbound, issuer: str) -> Provider:
    """Raises ProviderFailed."""
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    found = await read_json(outbound, url, Provider, what="the discovery document")
    if found.issuer != issuer:
        raise ProviderFailed(f"the provider at {issuer} calls itself {found.issuer[:200]!r}; set TIERGATE_OIDC_ISSUER")
    scheme = urlsplit(issuer).scheme
    places = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, found.end_session_endpoint)
    for place in places:
        if place is not None and urlsplit(place).scheme not in ("https", scheme):
            raise ProviderFailed("the discovery document names an endpoint without https")
    return found


async def read_json(outbound: Outbound, url: str, kind: type[T], *, what: str) -> T:
    """Raises ProviderFailed."""
    try:
        answer = await outbound.get(url, {"accept": "application/json"})
    except OutboundFailed as error:
        raise ProviderFailed(f"{what} cannot be read: {error}") from error
    if answer.status != 200:
        raise ProviderFailed(f"{what} cannot be read: the provider answers {answer.status}")
    return parse(answer.body, kind, what=what)


def parse(body: bytes, kind: type[T], *, what: str) -> T:
    """Raises ProviderFailed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProviderFailed(f"{what} is not as OpenID Connect has it: {error}") from error
