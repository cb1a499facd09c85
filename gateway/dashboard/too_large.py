"""Bodies sent to the console that are too large to be read: refused before anybody asks who sent them."""

from starlette.responses import Response
from starlette.types import Scope

from gateway.dashboard.links import HOME
from gateway.dashboard.rendering import render
from gateway.http.errors import BodyTooLarge


def is_console(scope: Scope) -> bool:
    return str(scope["path"]).startswith(f"{HOME}/")


def too_large_page(error: BodyTooLarge) -> Response:
    return render("too_large.html", status=error.status, headers=error.headers(), problem=error.message)
