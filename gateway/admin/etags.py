"""`ETag` and `If-Match`: the HTTP headers that mean the same as `version` in a body."""

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.domain.versions import Stale
from gateway.http.errors import GatewayError, InvalidRequest

_TAG = re.compile(r'"(\d{1,10})"')


class PreconditionFailed(GatewayError):
    status, type, code = 412, "invalid_request_error", Stale.code


class _Versioned(msgspec.Struct):
    version: int


_ANSWER = msgspec.json.Decoder(_Versioned)


class TaggedRoute(APIRoute):
    """A route whose answers carry the version of the object that they show as their ETag."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_tagged(request: Request) -> Response:
            response = await handle(request)
            # Lists, and objects without a version, get no tag.
            with contextlib.suppress(msgspec.MsgspecError):
                response.headers["etag"] = f'"{_ANSWER.decode(response.body).version}"'
            return response

        return handle_tagged


async def _if_match(
    tag: Annotated[
        str | None,
        Header(alias="If-Match", description="the ETag that you read; 412 if the object has changed since"),
    ] = None,
) -> AsyncIterator[int | None]:
    try:
        yield None if tag is None or tag.strip() == "*" else _version_of(tag)
    except Stale as stale:
        if tag is None:
            raise
        raise PreconditionFailed(stale.message, param="If-Match") from None


IfMatchDep = Annotated[int | None, Depends(_if_match)]
"""The version that the header names; None: any."""


def seen_version(if_match: int | None, version: int | None) -> int | None:
    """The version that an edit was based on, from the header or the body's `version`.

    Raises InvalidRequest if the two differ.
    """
    if None not in (if_match, version) and if_match != version:
        raise InvalidRequest("If-Match and version name different versions; send one of them", param="version")
    return version if if_match is None else if_match


def _version_of(tag: str) -> int:
    found = _TAG.fullmatch(tag.strip())
    if found is None:
        raise InvalidRequest('If-Match: send one ETag as it was read, such as "3", or *', param="If-Match")
    return int(found[1])
