"""One HTTP/1.1 connection to a member: writes requests as bytes, and reads answers through httptools' parser events."""

import asyncio
from typing import cast

import httptools

from gateway.upstream.http.errors import ConnectionWasStale, TransportFailed

HIGH_WATER_BYTES = 256 * 1024
"""How much may be received but not yet taken. Beyond it reading pauses, so that the member waits for our client."""
MAX_HEADER_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    """One request at a time: `send`, `await head()`, then `await next_chunk()` until it returns b""."""

    __slots__ = (
        "_chunks",
        "_failure",
        "_has_length",
        "_header_bytes",
        "_is_complete",
        "_is_paused",
        "_is_reused",
        "_loop",
        "_num_bytes",
        "_parser",
        "_size",
        "_transport",
        "_waiter",
        "active_at",
        "headers",
        "is_closed",
        "is_keepable",
        "may_linger",
        "silence_s",
        "started_at",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._is_reused = self.is_closed = False
        self._parser = httptools.HttpResponseParser(self)
        self.started_at = self.active_at = loop.time()
        self.silence_s = float("inf")
        """How long the member may be silent while we wait for it."""
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._size = self._num_bytes = self._header_bytes = 0
        self._failure: TransportFailed | None = None
        self._is_complete = self._is_paused = self._has_length = self.is_keepable = self.may_linger = False

    @property
    def is_idle(self) -> bool:
        """Whether the answer was read to its end and the connection may be used for another request."""
        return self._is_complete and self.is_keepable and not self.is_closed and not self._chunks

    @property
    def is_awaited(self) -> bool:
        """Whether a task is waiting for the member's next bytes."""
        return self._waiter is not None

    def send(self, request: bytes) -> None:
        """request: head and body."""
        self._is_reused = self._is_complete
        self._reset()
        self.started_at = self.active_at = self._loop.time()
        self._transport.write(request)

    async def head(self) -> int:
        """The status, once all headers have arrived. Raises TransportFailed."""
        while not self.status:
            await self._progress()
        return self.status

    async def next_chunk(self) -> bytes:
        """All of the body that has arrived since the last call; b"" at its end. Raises TransportFailed."""
        while not self._chunks:
            if self._is_complete:
                return b""
            await self._progress()
        chunks, self._chunks, self._size = self._chunks, [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def abort(self) -> None:
        """Close at once: nobody needs anything that the member still sends or computes."""
        self.is_closed = True
        self._transport.abort()

    def fail(self, failure: TransportFailed) -> None:
        """Close the connection, and raise `failure` in the task that waits on it."""
        if not self._is_complete and self._failure is None:
            self._failure = failure
        self.abort()
        self._wake()

    async def _progress(self) -> None:
        if self._failure is not None:
            raise self._failure
        # Silence is measured from the moment we start to wait, however long our own client took before.
        self.active_at = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            # Unexpected data, which must not become the beginning of the next answer.
            return self.abort()
        self.active_at = self._loop.time()
        self._num_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return self.fail(TransportFailed(f"not an HTTP answer: {error}"))
        if self._size > HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._is_complete or self._failure is not None:
            return self._wake()
        if self.status and not self._has_length and error is None:
            # Without a length or chunked encoding, the end of the connection is the end of the answer.
            self._is_complete = True
        elif self._is_reused and not self._num_bytes:
            self._failure = ConnectionWasStale("a kept connection was closed")
        else:
            self._failure = TransportFailed(str(error) if error else "the connection was closed in mid-answer")
        self._wake()

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._is_complete:
            # The first answer stands; only the connection is not reused.
            raise TransportFailed("more than one answer to a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise TransportFailed(f"an answer with more than {MAX_HEADER_BYTES} bytes of headers")
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # 100 Continue and other interim responses come before the answer.
            self.headers = {}
            return
        self.status = status
        self._has_length = b"content-length" in self.headers or b"transfer-encoding" in self.headers

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self._is_complete = True
            self.is_keepable = self._parser.should_keep_alive()
