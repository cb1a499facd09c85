"""The methods that a path accepts, over all of its routes, for the `Allow` header."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Empty if there is no such path. HEAD is allowed wherever GET is, OPTIONS on every path."""
    known = list(routes)
    if scope["path"] == "*":
        return ["GET", "HEAD", "OPTIONS", *_METHODS[1:]]
    found = [method for method in _METHODS if _is_served(known, {**scope, "method": method})]
    return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"] if found else []


def _is_served(routes: list[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)
