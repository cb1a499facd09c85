"""Derives from a person's claims what that person may do here."""

from collections.abc import Mapping
from typing import Any

from gateway.domain.people.service import Admitted
from gateway.http.errors import Forbidden
from gateway.oidc_settings import OidcSettings


def admitted(claims: Mapping[str, Any], settings: OidcSettings, *, id_token: str) -> Admitted:
    """Raises Forbidden for a person without a role, or with a role in a tenant but not exactly one tenant."""
    email = _email(claims)
    name, known = settings.oidc_roles_claim, settings.oidc_roles
    # A person who may enter an email address without verification could claim anybody's.
    is_sure = name != "email" or claims.get("email_verified") in (True, "true")
    told = _texts(_claim(claims, name)) if is_sure else []
    scopes = sorted({known[value] for value in told if value in known})
    if not scopes:
        raise Forbidden(
            f"you are {_called(email, claims)}, and have no role here. Ask your administrator for one: at the identity "
            f"provider the claim `{name}` of your account must hold one of {', '.join(map(repr, known))}"
        )
    session = claims.get("sid")
    return Admitted(
        issuer=claims["iss"],
        subject=claims["sub"],
        email=email,
        scopes=scopes,
        tenant=None if "platform-admin" in scopes else _tenant(claims, email, settings),
        provider_session=session if isinstance(session, str) and len(session) <= 255 else None,
        id_token=id_token,
    )


def _tenant(claims: Mapping[str, Any], email: str | None, settings: OidcSettings) -> str:
    name = settings.oidc_tenant_claim
    told = _texts(_claim(claims, name))
    if len(told) == 1:
        return told[0]
    problem = f"belong to {len(told)} tenants" if told else "belong to no tenant"
    raise Forbidden(
        f"you are {_called(email, claims)}, and {problem} here. Ask your administrator: at the identity provider the "
        f"claim `{name}` of your account must hold the name of one tenant"
    )


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim with exactly this name or, failing that, one nested in others: `realm_access.roles`."""
    found: Any = claims
    if name in claims:
        return claims[name]
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _texts(told: Any) -> list[str]:
    values = told if isinstance(told, list) else [told]
    return [value for value in values if isinstance(value, str) and value]


def _email(claims: Mapping[str, Any]) -> str | None:
    """None if the provider says that the address is unverified. Some providers never say whether it is verified."""
    email = claims.get("email")
    is_false = claims.get("email_verified") in (False, "false")
    return email if isinstance(email, str) and 0 < len(email) <= 320 and not is_false else None


def _called(email: str | None, claims: Mapping[str, Any]) -> str:
    return email or str(claims["sub"])[:100]
