"""Which methods a path takes: what `Allow` says, over all routes of the path."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Empty where there is no such path. HEAD is answered where GET is, OPTIONS everywhere."""
    known = list(routes)
    if scope["path"] == "*":
        return ["GET", "HEAD", "OPTIONS", *_METHODS[1:]]
    found = [method for method in _METHODS if _is_served(known, {**scope, "method": method})]
    return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"] if found else []


def _is_served(routes: list[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)
