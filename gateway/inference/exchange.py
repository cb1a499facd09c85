"""One HTTP request and its answer on bare ASGI: bounded body, headers sent once, chunks, client disconnects."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from gateway.domain.principal import Principal
from gateway.http.answer import BLOCK, ON_LEAVE, REQUEST_BODY, WHOLE_BODY
from gateway.http.errors import BodyTooLarge
from gateway.http.header_block import checked_block
from gateway.http.headers import Headers, check_json, read_headers
from gateway.http.proxies import Networks, client_address
from gateway.overload import Preparation

if TYPE_CHECKING:
    from gateway.inference.accounts import UsageSink
    from gateway.inference.replay import AnswerCopy
    from gateway.tracing.spans import RequestTrace


class ClientGone(Exception):
    """The client closed the connection."""


class Listener(Protocol):
    """Observes an answer on its way to the client."""

    def hear(self, chunk: bytes) -> None:
        """Called with each chunk of a stream, before it is sent."""

    async def keep(self, body: bytes | None) -> None:
        """Called when the answer is complete, before its end is sent: an exception raised here fails the answer.
        body: a whole answer; None after a stream."""

    def undo(self) -> None:
        """Called when the client is told that its request failed, perhaps after `keep`: take back what was kept."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.path: str = scope["path"]
        self.headers: Headers = dict(scope["headers"])
        self.is_started = False
        """The headers were sent; from here on errors go into the stream."""
        self.is_left = False
        """The client closed the connection, which cancels the task that answers."""
        self.status = 0
        self.principal: Principal | None = None
        """Whose request this is, once known; set in advance if the caller has already authenticated it."""
        self.usage: UsageSink | None = None
        """Where the usage event goes; None for the outbox."""
        self.is_admitted = False
        """The request passed its limits: from here on there will be a usage event."""
        self.served_by = ("", "", "")
        """Pool, model and tier for metrics; empty strings where not known yet."""
        self.trace: RequestTrace | None = None
        self.preparation: Preparation | None = None
        """Counts against this gateway's capacity until a member is called."""
        self.copy: AnswerCopy | None = None
        """If set, a copy of the answer is kept, and the answer is completed even if the client leaves."""
        self.extra_headers: dict[str, str] = {}
        """Sent with any answer, including errors."""
        self.listeners: list[Listener] = []

    def check_headers(self) -> None:
        """Raises InvalidRequest or UnsupportedMediaType."""
        self.headers = read_headers(self._scope["headers"])
        check_json(self.headers)

    def client_address(self, trusted_proxies: Networks) -> str:
        lines = [value.decode("latin-1") for name, value in self._scope["headers"] if name == b"x-forwarded-for"]
        peer, _ = self._scope["client"] or ("", 0)
        return client_address(peer, lines, trusted_proxies)

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
        """Called when the task ends. Request and task refer to each other, so without this both, and the body, would
        stay in memory until a garbage collection."""
        del self._scope[ON_LEAVE], self._task

    def _leave(self) -> None:
        if not self.is_left and self.copy is None:
            self.is_left = True
            self._task.cancel()

    @property
    def has_body(self) -> bool:
        """Whether the whole body arrived with the headers, so that reading it does not wait."""
        return REQUEST_BODY in self._scope

    async def read_body(self, max_bytes: int) -> bytes:
        """Raises BodyTooLarge or ClientGone. The HTTP server enforces the time limit."""
        whole: bytes | None = self._scope.get(REQUEST_BODY)
        if whole is not None and len(whole) <= max_bytes:
            return whole
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > max_bytes:
            raise BodyTooLarge(max_bytes)
        body, more = self._part(await self._receive())
        if not more and len(body) <= max_bytes:
            # Nearly always the whole body came with the headers.
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
        if self.copy is not None:
            self.copy.begin(status, {**self.extra_headers, **headers})
        block = _block({**self.extra_headers, **headers})
        await self._send({"type": "http.response.start", "status": status, BLOCK: block})

    async def send(self, chunk: bytes) -> None:
        if self.copy is not None:
            self.copy.add(chunk)
        for listener in self.listeners:
            listener.hear(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def keep(self, body: bytes | None = None) -> None:
        """Called before the answer's end is sent: by the time the client sees the end, the answer is kept."""
        for listener in self.listeners:
            await listener.keep(body)

    def undo(self) -> None:
        for listener in self.listeners:
            listener.undo()

    async def finish(self, chunk: bytes = b"") -> None:
        if self.copy is not None:
            self.copy.add(chunk)
            await self.copy.keep()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.is_started, self.status = True, status
        if self.copy is not None:
            self.copy.begin(status, {**self.extra_headers, **headers})
            self.copy.add(body)
            await self.copy.keep()
        block = _block({**self.extra_headers, **headers, "content-length": str(len(body))})
        await self._send({"type": "http.response.start", "status": status, BLOCK: block, WHOLE_BODY: body})


def _block(headers: Mapping[str, str]) -> bytes:
    block = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return checked_block(block.encode("latin-1", "replace"), num_lines=len(headers))
