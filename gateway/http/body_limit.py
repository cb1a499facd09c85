"""A bound on the bodies of everything but completions, which read theirs themselves."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import BodyTooLarge
from gateway.http.rendering import error_response


class BodyLimit:
    """Forms of files, where a route takes them, have a bound of their own: they are read while they come."""

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, max_form_bytes: int, takes_form: Callable[[Scope], bool]
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_form_bytes = max_form_bytes
        self._takes_form = takes_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        max_bytes = self._max_form_bytes if self._takes_form(scope) else self._max_body_bytes
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            return await error_response(BodyTooLarge(max_bytes))(scope, receive, send)
        await self._app(scope, _counting(receive, max_bytes), send)


def _counting(receive: Receive, max_bytes: int) -> Receive:
    """For a body without an announced length."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise BodyTooLarge(max_bytes)
        return message

    return receive_some
