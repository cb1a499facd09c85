"""A size limit on all request bodies except those of completions, which read their bodies themselves."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import BodyTooLarge


class BodyLimit:
    """File upload forms are processed as they arrive, and have separate limits on the routes that accept them.

    max_form_bytes: the limit of a file upload form; None for other requests. refuse: makes the error's response, as
    JSON or as a page.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        max_form_bytes: Callable[[Scope], int | None],
        refuse: Callable[[Scope, BodyTooLarge], Response],
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_form_bytes = max_form_bytes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        max_bytes = self._max_form_bytes(scope) or self._max_body_bytes
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            return await self._refuse(scope, BodyTooLarge(max_bytes))(scope, receive, send)
        await self._app(scope, _counting(receive, max_bytes), send)


def _counting(receive: Receive, max_bytes: int) -> Receive:
    """Enforces the limit on a body without an announced length."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise BodyTooLarge(max_bytes)
        return message

    return receive_some
