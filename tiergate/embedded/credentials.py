"""The password of a request to ClickHouse, wherever it stands: headers, basic authentication, parameters."""

import hmac
from collections.abc import Mapping

from aiohttp import BasicAuth

USER = "tiergate"


class WrongPassword(Exception):
    """Becomes an exception in ClickHouse's shape, code 516 (AUTHENTICATION_FAILED)."""


def check_password(headers: Mapping[str, str], params: Mapping[str, str], *, password: str) -> None:
    """Raises WrongPassword. Where a request names a user twice, the header counts."""
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
