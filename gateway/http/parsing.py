"""The parsing of requests: uvicorn's httptools protocol, with bounds on a head's bytes and fields and on a body's
framing and parts. `body_limit` bounds a body's length.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.http.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.http.header_block import head_block

MAX_HEAD_BYTES = 65536
MAX_FIELDS = 100
_FREE_FRAMING_BYTES = 16384
_MAX_FRAMING_RATIO = 3
"""In chunked bodies the framing may take three times as many bytes as the content, as with chunks of two bytes."""
_FREE_PARTS = 4096
_MIN_BYTES_A_PART = 16
"""A body may come in _FREE_PARTS parts of any size. Further parts must hold _MIN_BYTES_A_PART bytes on average, since
each part costs a callback."""
_MAX_OFFERS = 32
"""Upgrade offers in one piece of data. What follows an offer is parsed within its parsing."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

BETWEEN, HEAD, BODY, DEAF = range(4)
"""What the next bytes belong to. DEAF: to nothing; they are discarded until the connection ends."""


class _GaveUp(Exception):
    """Stops the parser; `RequestParsing._refusal` holds the reason."""


class RequestParsing(HttpToolsProtocol, ABC):
    """Turns the bytes of one connection into the scopes and bodies of its requests.

    `Connection` adds what follows when a request begins, when its head is complete and when all of it has arrived.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._parsing = BETWEEN
        self._refusal: GatewayError | None = None
        """The error with which a parser callback gave up."""
        self._plain_head = b""
        self._num_offers = 0
        """In the piece of data that is being parsed."""
        self.num_parsed = 0
        """Requests parsed to their end."""
        self._head_bytes = 0
        self._is_head_new = False
        """The current head began in the piece of data that is being parsed."""
        self._fed_body_bytes = 0
        """Bytes of bodies in that piece."""
        self._wire_bytes = self._body_bytes = self._num_parts = 0
        """The current body's bytes with and without chunk framing, and its number of parts."""

    def _receive(self, data: bytes) -> None:
        if self._parsing == HEAD and len(data) > (room := MAX_HEAD_BYTES - self._head_bytes):
            self._feed(data[:room])
            if self._parsing == HEAD and self._head_bytes >= MAX_HEAD_BYTES:
                return self._refuse(HeadersTooLarge(MAX_HEAD_BYTES, MAX_FIELDS), "headers too large")
            return self.data_received(data[room:])
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        was_in_body = self._parsing == BODY
        self._is_head_new, self._fed_body_bytes = False, 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.parser, self._parsing = _make_parser(self), BETWEEN
            if self._num_offers >= _MAX_OFFERS:
                return self._refuse(InvalidRequest("too many upgrade offers at once on one connection"), "invalid HTTP")
            self._num_offers += 1
            try:
                return self.data_received(self._plain_head + data[upgrade.args[0] :])
            finally:
                self._num_offers -= 1
        except httptools.HttpParserError as error:
            refusal, self._refusal = self._refusal, None
            if refusal is None:
                refusal = InvalidRequest(f"this is not a valid HTTP/1.1 request: {error}", code="invalid_http")
            return self._refuse(refusal, "invalid HTTP" if refusal.status == 400 else "headers too large")
        if self._parsing == HEAD:
            self._head_bytes += self._num_new_head_bytes(data)
        elif self._parsing == BODY and was_in_body:
            self._wire_bytes += len(data)
            if self._wire_bytes - self._body_bytes > _FREE_FRAMING_BYTES + _MAX_FRAMING_RATIO * self._body_bytes:
                self._refuse(InvalidRequest("the chunks of the body are mostly framing"), "invalid HTTP")

    def _num_new_head_bytes(self, data: bytes) -> int:
        """How many bytes of an incomplete head `data` holds; earlier requests may end in the same data."""
        if not self._is_head_new:
            return len(data)
        after_last_head = len(data) - (data.rfind(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0)
        # At least the byte with which the head began.
        return max(1, after_last_head - self._fed_body_bytes)

    @abstractmethod
    def _refuse(self, error: GatewayError, reason: str) -> None:
        """Answer with `error`, and parse no more."""

    # Parser callbacks.

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_FIELDS:
            self._give_up(HeadersTooLarge(MAX_HEAD_BYTES, MAX_FIELDS))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._fed_body_bytes += len(body)
        self._num_parts += 1
        if self._num_parts > _FREE_PARTS + self._body_bytes / _MIN_BYTES_A_PART:
            self._give_up(InvalidRequest("the body comes in too small chunks"))
        answer = self.cycle
        if answer.response_complete:
            return
        answer.body += body
        if len(answer.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        answer.message_event.set()

    def _give_up(self, refusal: GatewayError) -> None:
        """Called in a parser callback: stops the parser, and `_feed` then refuses the request."""
        self._refusal = refusal
        # `refusal` itself is not raised: its traceback would refer to this frame, which refers to it, and that cycle
        # would keep the connection and everything it has read alive.
        raise _GaveUp

    # Complete heads.

    def _head_without_upgrade(self) -> bytes:
        """The head without its upgrade offer. We speak only HTTP/1.1, so the request is parsed again without the offer;
        otherwise the parser would leave the body unread, as data of the other protocol."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._give_up(InvalidRequest("this is no proxy"))
        lines = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        if not self.parser.should_keep_alive():
            lines.append((b"connection", b"close"))
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, head_block(lines))

    def _complete_scope(self) -> str:
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._give_up(InvalidRequest("send HTTP/1.1"))
        url = httptools.parse_url(self.url)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
            if _CONTROL.search(path):
                self._give_up(InvalidRequest("the path holds control characters"))
        query = url.query or b""
        if b"%00" in query:
            self._give_up(InvalidRequest("the query holds a zero byte"))
        scope = self.scope
        scope["method"], scope["http_version"] = self.parser.get_method().decode("ascii"), version
        scope["path"], scope["raw_path"], scope["query_string"] = path, raw_path, query
        return version


def _make_parser(connection: RequestParsing) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    # Data after a request with `Connection: close` must not spoil that request's answer.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
