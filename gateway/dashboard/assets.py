"""The console's styles and scripts. Each URL carries the content's digest, so that browsers may cache it for good."""

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import NotFound

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FOR_GOOD = "public, max-age=31536000, immutable"


def asset_url(name: str) -> str:
    return f"/dashboard/static/{name}?v={_digest(name)}"


async def serve_asset(request: Request) -> Response:
    name = str(request.path_params["name"])
    if name not in _names():
        raise NotFound("there is no such file")
    is_current = request.query_params.get("v") == _digest(name)
    headers = {"Cache-Control": _FOR_GOOD if is_current else "no-cache", "X-Content-Type-Options": "nosniff"}
    return Response(_content(name), media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _names() -> frozenset[str]:
    folder = files("gateway.dashboard") / "static"
    return frozenset(each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES)


@cache
def _content(name: str) -> bytes:
    return (files("gateway.dashboard") / "static" / name).read_bytes()


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(_content(name)).hexdigest()[:16]
