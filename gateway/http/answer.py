"""One request in the server's hands: what the application sends becomes bytes on the connection."""

import math
from collections.abc import Iterable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.header_block import head_block
from gateway.http.refusal import Refusal
from gateway.http.rendering import error_body, error_headers, error_status

MAX_DISCARDED_BODY_BYTES = 65536
"""A connection outlives an answer that came before the body if no more than this is still to come."""
ON_LEAVE = "tiergate.on_leave"
"""The scope's key for what is called when the client is gone before the answer is complete."""
BLOCK = "tiergate.block"
"""In `http.response.start`: more header lines, from `checked_block`. The hot path writes its dozen as one text."""
REQUEST_BODY = "tiergate.request_body"
"""The scope's key for the request's body, where all of it is there already. `receive` gives it, too."""
WHOLE_BODY = "tiergate.whole_body"
"""Beside a block that holds its Content-Length: the body, so that a whole answer is one message and one write."""
_WITHOUT_BODY = (204, 304)


class Answer(RequestResponseCycle):
    """uvicorn's cycle with a `send` of our own.

    It checks headers once as a block, ends an answer to HTTP/1.0 by closing, and leaves closing to the connection.
    """

    num_bytes_left: int | None = None
    """Of the Content-Length; None where none was sent."""
    is_bodiless = False
    _unsent = b""
    """The head, which leaves together with the first of the body: each write is a call of the kernel."""

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
        """Within the parser's callback: the connection goes on afterwards, and the client reads what we write."""
        if not self.keep_alive or self.flow.write_paused:
            return False
        return not self.more_body or _announced_bytes(self.scope["headers"]) <= MAX_DISCARDED_BODY_BYTES

    def tell(self, refusal: Refusal) -> None:
        """The whole answer, without an application. Only where `can_be_told_at_once`."""
        self.num_bytes_left = len(refusal.body)
        self._write_head(refusal.status, (), refusal.block)
        self._write_body(refusal.body, more_body=False)

    def leave(self) -> None:
        """Nobody waits for the rest."""
        self.disconnected = True
        self.message_event.set()
        if ON_LEAVE in self.scope:
            self.scope[ON_LEAVE]()  # type: ignore[literal-required]

    async def send_500_response(self) -> None:
        """For a bug that nothing below has caught."""
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
            # HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
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
        self.transport.write(body)
        if not more_body:
            self.response_complete = True
            self.message_event.set()
            self.on_response()

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
