"""Checks the console's identity provider: reachable, as configured, with keys, and its clock in step."""

from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from gateway.oidc.client import OidcClient
from gateway.oidc.errors import ProviderFailed
from gateway.settings import GatewaySettings
from tiergate.doctor.findings import Finding, error, one_line, warning

DEADLINE_S = 5.0
MAX_SKEW_S = 30.0
"""Half of the minute of leeway with which tokens are accepted."""


async def look_at_provider(settings: GatewaySettings, now: datetime) -> list[Finding]:
    if settings.oidc_issuer is None:
        return []
    client = OidcClient(settings, settings.oidc_issuer)
    try:
        await client.check()
    except ProviderFailed as problem:
        todo = "start it, or correct TIERGATE_OIDC_ISSUER; at a private address it needs TIERGATE_OIDC_PRIVATE_NETWORKS"
        return [error("oidc-provider", f"people cannot log in: {problem.message}", todo)]
    finally:
        await client.close()
    found = await _clock(settings.oidc_issuer, now)
    if settings.public_url is not None and settings.public_url.startswith("http:"):
        todo = "serve the console by https, and say so in TIERGATE_PUBLIC_URL"
        found.append(warning("oidc-plain", "people are sent back to the console without https", todo))
    return found


async def _clock(issuer: str, now: datetime) -> list[Finding]:
    """Compare the clocks by the `Date` header of an answer; without one the skew is unknown."""
    try:
        async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http:
            answer = await http.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        there = parsedate_to_datetime(answer.headers["date"])
    except (httpx.HTTPError, KeyError, ValueError) as problem:
        return [warning("oidc-clock", f"the provider's clock cannot be seen: {one_line(problem)}", "look at it there")]
    skew_s = abs((there - now).total_seconds())
    if skew_s <= MAX_SKEW_S:
        return []
    return [error("clock", f"the identity provider's clock and ours differ by {skew_s:.0f} s", "run NTP here")]
