"""`TIERGATE_OIDC_*`: the identity provider through which people log in to the console."""

import json
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode

Role = Literal["platform-admin", "tenant-admin", "usage"]
"""The key scopes that a person can have: platform operator, tenant administrator and tenant reader."""


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError('write JSON such as {"llm-operators": "platform-admin"}') from None


def _without_slash(url: Any) -> Any:
    return url.rstrip("/") if isinstance(url, str) else url


class OidcSettings(BaseSettings):
    oidc_issuer: str | None = Field(default=None, pattern=r"^https?://[^\s?#]+$", max_length=500)
    """Exactly as the provider writes it, including a trailing slash; None: people log in with keys."""
    oidc_name: str = Field(default="single sign-on", min_length=1, max_length=60)
    """The provider's name on the login button: `Log in with ...`."""
    oidc_client_id: str = Field(default="", max_length=500, validate_default=True)
    oidc_client_secret: SecretStr | None = None
    """None: a public client, protected by PKCE alone."""
    oidc_scopes: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ("openid", "profile", "email")
    oidc_roles_claim: str = Field(default="roles", min_length=1, max_length=200)
    """A claim of the ID token; a dot, as in `realm_access.roles`, names a claim within a claim."""
    oidc_roles: Annotated[dict[str, Role], NoDecode, BeforeValidator(_read)] = Field(
        default_factory=dict, validate_default=True
    )
    """Value of the claim -> role."""
    oidc_tenant_claim: str = Field(default="tenant", min_length=1, max_length=200)
    """The claim with the name or id of a person's tenant; not needed for platform operators."""
    oidc_session_s: int = Field(default=12 * 3600, ge=60, le=30 * 86_400)
    """Maximum length of a person's visit, which also ends after `oidc_idle_s` without a request."""
    oidc_idle_s: int = Field(default=3600, ge=60, le=30 * 86_400)
    oidc_private_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split)] = ()
    """Private networks in which the provider may be; otherwise it must be at a public address."""
    public_url: Annotated[str | None, BeforeValidator(_without_slash)] = Field(
        default=None, pattern=r"^https?://[^\s/?#]+$", validate_default=True
    )
    """Where browsers reach this gateway; the provider redirects them back to it."""

    @field_validator("oidc_issuer")
    @classmethod
    def _is_encrypted(cls, issuer: str | None) -> str | None:
        if issuer is not None and issuer.startswith("http:") and not _is_loopback(urlsplit(issuer).hostname or ""):
            raise ValueError("only a provider on this very machine may do without https")
        return issuer

    @field_validator("oidc_client_id", "oidc_roles", "public_url")
    @classmethod
    def _is_there(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("oidc_issuer") is not None and not value:
            raise ValueError("a login by TIERGATE_OIDC_ISSUER needs it")
        return value

    @field_validator("oidc_scopes")
    @classmethod
    def _ask_for_identity(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes:
            raise ValueError("`openid` must be one of them")
        return scopes


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
