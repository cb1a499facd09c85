"""A bound on the bodies of everything but completions, which read theirs themselves."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import BodyTooLarge
from gateway.http.rendering import error_response


class BodyLimit:
    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            return await error_response(BodyTooLarge(self._max_body_bytes))(scope, receive, send)
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        """For a body without an announced length."""
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body_bytes:
                raise BodyTooLarge(self._max_body_bytes)
            return message

        return receive_some
