"""One HTTP request and its answer on bare ASGI: a bounded body, headers once, chunks, the client's leaving."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from gateway.domain.principal import Principal
from gateway.http.answer import BLOCK, ON_LEAVE, WHOLE_BODY
from gateway.http.errors import BodyTooLarge
from gateway.http.header_block import checked_block
from gateway.http.headers import Headers, check_json, read_headers
from gateway.overload import Preparation

if TYPE_CHECKING:
    from gateway.tracing.spans import RequestTrace


class ClientGone(Exception):
    """The client closed the connection."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.path: str = scope["path"]
        self.headers: Headers = dict(scope["headers"])
        self.is_started = False
        """Headers are sent: from here on errors go into the stream."""
        self.is_left = False
        """The client closed the connection, which cancels the task that answers."""
        self.status = 0
        self.principal: Principal | None = None
        """Who asks, once that is known."""
        self.is_admitted = False
        """The request passed its limits: from here on there will be a usage event."""
        self.served_by = ("", "", "")
        """Pool, model and tier, as far as they are known: for metrics."""
        self.trace: RequestTrace | None = None
        self.preparation: Preparation | None = None
        """Counts against this gateway's capacity until a member is called."""
        self.extra_headers: dict[str, str] = {}
        """Sent with whatever answer there will be."""

    def check_headers(self) -> None:
        """Raises InvalidRequest or UnsupportedMediaType."""
        self.headers = read_headers(self._scope["headers"])
        check_json(self.headers)

    def end_preparation(self) -> None:
        if self.preparation is not None:
            self.preparation.end()

    def cancel_on_leave(self) -> None:
        """From now on the running task is cancelled, once, when the client leaves."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._scope[ON_LEAVE] = self._leave

    def forget_leaving(self) -> None:
        """The task ends. Request and task hold each other, body and all: they would stay until a garbage collection."""
        del self._scope[ON_LEAVE], self._task

    def _leave(self) -> None:
        if not self.is_left:
            self.is_left = True
            self._task.cancel()

    async def read_body(self, max_bytes: int) -> bytes:
        """Raises BodyTooLarge or ClientGone. How long it may take is our server's business."""
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > max_bytes:
            raise BodyTooLarge(max_bytes)
        body, more = self._part(await self._receive())
        if not more and len(body) <= max_bytes:
            # Nearly always all of it came with the headers.
            return body
        chunks, size = [body], len(body)
        while more and size <= max_bytes:
            body, more = self._part(await self._receive())
            size += len(body)
            chunks.append(body)
        if size > max_bytes:
            raise BodyTooLarge(max_bytes)
        return b"".join(chunks)

    @staticmethod
    def _part(message: Mapping[str, object]) -> tuple[bytes, bool]:
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        assert isinstance(body, bytes | bytearray)
        return bytes(body), bool(message.get("more_body", False))

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.is_started, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, BLOCK: self._block(headers)})

    async def send(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.is_started, self.status = True, status
        block = self._block({**headers, "content-length": str(len(body))})
        await self._send({"type": "http.response.start", "status": status, BLOCK: block, WHOLE_BODY: body})

    def _block(self, headers: Mapping[str, str]) -> bytes:
        lines = {**self.extra_headers, **headers}
        block = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
        return checked_block(block.encode("latin-1", "replace"), num_lines=len(lines))
