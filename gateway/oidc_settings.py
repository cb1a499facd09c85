"""`TIERGATE_OIDC_*`: the identity provider that people log in to the console with."""

import json
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode

Role = Literal["platform-admin", "tenant-admin", "usage"]
"""The scopes of keys that a person can have: platform operator, administrator and reader of a tenant."""


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
    """As the provider writes it, a slash at its end included; None: people log in with keys."""
    oidc_name: str = Field(default="single sign-on", min_length=1, max_length=60)
    """`Log in with ...`."""
    oidc_client_id: str = Field(default="", max_length=500, validate_default=True)
    oidc_client_secret: SecretStr | None = None
    """None: a public client, which PKCE alone protects."""
    oidc_scopes: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ("openid", "profile", "email")
    oidc_roles_claim: str = Field(default="roles", min_length=1, max_length=200)
    """Of the ID token; `realm_access.roles` is a claim within a claim."""
    oidc_roles: Annotated[dict[str, Role], NoDecode, BeforeValidator(_read)] = Field(
        default_factory=dict, validate_default=True
    )
    """The claim's values, and what each gives."""
    oidc_tenant_claim: str = Field(default="tenant", min_length=1, max_length=200)
    """It holds the name or the id of the tenant, of everybody but platform operators."""
    oidc_session_s: int = Field(default=12 * 3600, ge=60, le=30 * 86_400)
    """A person's visit lasts at most so long, and ends when nothing was asked for `oidc_idle_s`."""
    oidc_idle_s: int = Field(default=3600, ge=60, le=30 * 86_400)
    oidc_private_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split)] = ()
    """Private addresses that the provider may be at; else it must be at a public one."""
    public_url: Annotated[str | None, BeforeValidator(_without_slash)] = Field(
        default=None, pattern=r"^https?://[^\s/?#]+$", validate_default=True
    )
    """Where browsers reach this gateway; the provider sends them back there."""

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
