"""Every answer carries `x-request-id`; completions make their own, because it is their usage event's id too."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.clock import utc_now
from protocol.ids import new_id

HEADER = "x-request-id"


class RequestIds:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = str(new_id(utc_now()))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(HEADER, request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)
