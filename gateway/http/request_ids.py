"""Every answer carries `x-request-id` and is counted. Completions make their own id, shared with their usage event."""

import logging
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.clock import utc_now
from gateway.log_context import note_request
from protocol.ids import new_id

_access = logging.getLogger("gateway.access")
HEADER = "x-request-id"
_AREAS = frozenset({"v1", "admin", "dashboard", "health", "ready", "metrics"})


class RequestIds:
    def __init__(self, app: ASGIApp, *, count: Callable[[tuple[str, str]], None]) -> None:
        """count: called with the status and the first segment of the path, or `other` for an unknown segment."""
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = str(new_id(utc_now()))
        note_request(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(HEADER, request_id)
                _access.debug("%s %s %d", scope["method"], scope["path"], message["status"])
                self._count((str(message["status"]), _area(scope["path"])))
            await send(message)

        await self._app(scope, receive, send_with_id)


def _area(path: str) -> str:
    first = path.lstrip("/").partition("/")[0]
    return first if first in _AREAS else "other"
