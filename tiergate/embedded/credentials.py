"""The credentials of a request to ClickHouse: in its headers, by basic authentication, or in parameters."""

import hmac
from collections.abc import Mapping

from aiohttp import BasicAuth

USER = "tiergate"


class WrongPassword(Exception):
    """Sent as a ClickHouse exception with code 516 (AUTHENTICATION_FAILED)."""


def check_password(headers: Mapping[str, str], params: Mapping[str, str], *, password: str) -> None:
    """Raises WrongPassword. ClickHouse's own headers win over basic authentication, and both win over parameters."""
    user, given = _credentials(headers, params)
    is_right = hmac.compare_digest(given.encode("utf-8", "replace"), password.encode())
    if not is_right or user != USER:
        raise WrongPassword(
            f"{user or 'default'}: Authentication failed: password is incorrect, or there is no such user"
        )


def _credentials(headers: Mapping[str, str], params: Mapping[str, str]) -> tuple[str, str]:
    if "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers:
        return headers.get("X-ClickHouse-User", ""), headers.get("X-ClickHouse-Key", "")
    if "Authorization" in headers:
        try:
            basic = BasicAuth.decode(headers["Authorization"], encoding="utf-8")
        except ValueError as error:
            raise WrongPassword(f"the Authorization header cannot be read: {error}") from error
        return basic.login, basic.password
    return params.get("user", ""), params.get("password", "")
