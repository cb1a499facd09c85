"""One request inside the HTTP server: turns the application's ASGI messages into bytes on the connection."""

import math
from collections.abc import Iterable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.header_block import head_block
from gateway.http.refusal import Refusal
from gateway.http.rendering import error_body, error_headers, error_status
from gateway.http.write_batch import WriteBatch

MAX_DISCARDED_BODY_BYTES = 65536
"""A connection stays open after an answer sent before the request's body had arrived, if that body's announced length
is at most this."""
MAX_HELD_BYTES = 16384
"""More than this is written at once: merging it saves nothing, and only what the transport has slows its sender
down."""
ON_LEAVE = "tiergate.on_leave"
"""The scope's key for a function to call if the client leaves before the answer is complete."""
BLOCK = "tiergate.block"
"""A key of `http.response.start`: more header lines, from `checked_block`. The hot path writes its dozen headers as one
text."""
REQUEST_BODY = "tiergate.request_body"
"""The scope's key for the request's body, set if the whole body has arrived already. `receive` also returns it."""
WHOLE_BODY = "tiergate.whole_body"
"""A key beside BLOCK: the whole body, whose Content-Length is in the block. The answer is then one message and one
write."""
_WITHOUT_BODY = (204, 304)


class Answer(RequestResponseCycle):
    """uvicorn's request cycle with our own `send`.

    It checks the headers once, as a block, ends an answer of unknown length to HTTP/1.0 by closing the connection, and
    leaves the closing itself to `Connection`.
    """

    num_bytes_left: int | None = None
    """How much of the Content-Length is still to be sent; None without a Content-Length."""
    is_bodiless = False
    _unsent = b""
    """Held to be written together with what follows: the head, and parts of the body until the write batch leaves."""
    _is_held = False
    """The write batch will call `write_held`."""
    write_batch: WriteBatch

    async def send(self, message: ASGISendEvent) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            headers, block = message.get("headers", ()), message.get(BLOCK, b"")
            body: bytes | None = message.get(WHOLE_BODY)  # type: ignore[assignment]
            if body is not None:
                self.num_bytes_left = len(body)
            self._write_head(message["status"], headers, block)  # type: ignore[arg-type]
            if body is not None:
                self._write_body(body, more_body=False)
        elif message["type"] == "http.response.body":
            self._write_body(message.get("body", b""), more_body=message.get("more_body", False))
        else:
            raise RuntimeError(f"an answer has no {message['type']!r}")

    @property
    def can_be_told_at_once(self) -> bool:
        """Whether the request may be answered inside the parser's callback: the connection stays open, and the client
        keeps up with reading."""
        if not self.keep_alive or self.flow.write_paused:
            return False
        return not self.more_body or _announced_bytes(self.scope["headers"]) <= MAX_DISCARDED_BODY_BYTES

    def tell(self, refusal: Refusal) -> None:
        """Write the whole answer, without an application. Only if `can_be_told_at_once`."""
        self.num_bytes_left = len(refusal.body)
        self._write_head(refusal.status, (), refusal.block)
        self._write_body(refusal.body, more_body=False)

    def leave(self) -> None:
        """The client has left: stop the answer."""
        self.disconnected = True
        self.message_event.set()
        if ON_LEAVE in self.scope:
            self.scope[ON_LEAVE]()  # type: ignore[literal-required]

    async def send_500_response(self) -> None:
        """Answer after a bug that the application did not handle."""
        error = Exception()
        headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
        self.keep_alive = False
        await self.send({"type": "http.response.start", "status": error_status(error), "headers": headers})
        await self.send({"type": "http.response.body", "body": error_body(error), "more_body": False})

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]], block: bytes = b"") -> None:
        if self.response_started:
            raise RuntimeError("the answer has begun already")
        self.response_started, self.waiting_for_100_continue = True, False
        self.is_bodiless = status in _WITHOUT_BODY or self.scope["method"] == "HEAD"
        if self.more_body and self.keep_alive:
            self.keep_alive = _announced_bytes(self.scope["headers"]) <= MAX_DISCARDED_BODY_BYTES
        lines = [*self.default_headers, *headers]
        for name, value in lines:
            if name == b"content-length":
                self.num_bytes_left = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
        if not self.keep_alive and not any(name == b"connection" for name, _ in lines):
            lines.append((b"connection", b"close"))
        self.chunked_encoding = (
            self.num_bytes_left is None and not self.is_bodiless and self.scope["http_version"] == "1.1"
        )
        if self.chunked_encoding:
            lines.append((b"transfer-encoding", b"chunked"))
        elif self.num_bytes_left is None and not self.is_bodiless:
            # HTTP/1.0 has no chunked encoding: closing the connection marks the end of the answer.
            self.keep_alive = False
        self._unsent = STATUS_LINE[status] + block + head_block(lines) + b"\r\n"

    def _write_body(self, body: bytes, *, more_body: bool) -> None:
        if not self.response_started or self.response_complete:
            raise RuntimeError("a part of the body outside an answer")
        if self.is_bodiless:
            body = b""
        elif self.chunked_encoding:
            body = _chunk(body, is_last=not more_body)
        else:
            self._count(len(body), more_body=more_body)
        if self._unsent:
            body, self._unsent = self._unsent + body, b""
        if more_body and len(body) <= MAX_HELD_BYTES:
            self._hold(body)
            return
        self.transport.write(body)
        if not more_body:
            self.response_complete = True
            self.message_event.set()
            self.on_response()

    def _hold(self, part: bytes) -> None:
        self._unsent = part
        if not self._is_held:
            self._is_held = True
            self.write_batch.add(self)

    def write_held(self) -> None:
        """Called by the write batch."""
        part, self._unsent, self._is_held = self._unsent, b"", False
        if part and not self.transport.is_closing():
            self.transport.write(part)

    def _count(self, size: int, *, more_body: bool) -> None:
        if self.num_bytes_left is None:
            return
        self.num_bytes_left -= size
        if self.num_bytes_left < 0 or (self.num_bytes_left and not more_body):
            raise RuntimeError("the body is not as long as its Content-Length says")


def _chunk(body: bytes, *, is_last: bool) -> bytes:
    end = b"0\r\n\r\n" if is_last else b""
    return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end


def _announced_bytes(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """The request's Content-Length; infinite for a chunked body."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return math.inf
