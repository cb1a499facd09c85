"""One HTTP request and its answer on bare ASGI: a bounded body, headers once, chunks, the client's leaving."""

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
    """Hears an answer on its way to the client."""

    def hear(self, chunk: bytes) -> None:
        """A part of a stream."""

    async def keep(self, body: bytes | None) -> None:
        """All has been said, and nobody knows yet: what is raised here is the answer's failure. body: a whole answer;
        None after a stream."""


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
        """Who asks, once that is known; set before by whoever has authenticated already."""
        self.usage: UsageSink | None = None
        """Where the event goes; None: to the outbox."""
        self.is_admitted = False
        """The request passed its limits: from here on there will be a usage event."""
        self.served_by = ("", "", "")
        """Pool, model and tier, as far as they are known: for metrics."""
        self.trace: RequestTrace | None = None
        self.preparation: Preparation | None = None
        """Counts against this gateway's capacity until a member is called."""
        self.copy: AnswerCopy | None = None
        """What is sent is kept, too, and the answer is made to its end whether the client stays or not."""
        self.extra_headers: dict[str, str] = {}
        """Sent with whatever answer there will be."""
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
        """The task ends. Request and task hold each other, body and all: they would stay until a garbage collection."""
        del self._scope[ON_LEAVE], self._task

    def _leave(self) -> None:
        if not self.is_left and self.copy is None:
            self.is_left = True
            self._task.cancel()

    @property
    def has_body(self) -> bool:
        """All of it came with the headers: to read it is no waiting."""
        return REQUEST_BODY in self._scope

    async def read_body(self, max_bytes: int) -> bytes:
        """Raises BodyTooLarge or ClientGone. How long it may take is our server's business."""
        whole: bytes | None = self._scope.get(REQUEST_BODY)
        if whole is not None and len(whole) <= max_bytes:
            return whole
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
        if self.copy is not None:
            self.copy.begin(status, {**self.extra_headers, **headers})
        await self._send({"type": "http.response.start", "status": status, BLOCK: self._block(headers)})

    async def send(self, chunk: bytes) -> None:
        if self.copy is not None:
            self.copy.add(chunk)
        for listener in self.listeners:
            listener.hear(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def keep(self, body: bytes | None = None) -> None:
        """Before an answer's end: once it is said, it is kept."""
        for listener in self.listeners:
            await listener.keep(body)

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
        block = self._block({**headers, "content-length": str(len(body))})
        await self._send({"type": "http.response.start", "status": status, BLOCK: block, WHOLE_BODY: body})

    def _block(self, headers: Mapping[str, str]) -> bytes:
        lines = {**self.extra_headers, **headers}
        block = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
        return checked_block(block.encode("latin-1", "replace"), num_lines=len(lines))
