"""Servers of tools: honest ones, and hostile ones that try to harm their callers."""

import asyncio
import gzip
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.members import serving_app

METADATA = "http://169.254.169.254/latest/meta-data"
Answer = Callable[[Any], Awaitable[web.StreamResponse]]


@dataclass
class ToolServer:
    """Records its calls. `answers` makes the answer from the arguments; by default it returns them."""

    url: str = ""
    answers: Callable[[Any], Any] = lambda arguments: arguments
    calls: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    """(headers with names in lower case, arguments) of each call."""
    is_stuck: bool = False
    """The server does not answer, so that the client has to leave."""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        arguments = await request.json()
        self.calls.append(({name.lower(): value for name, value in request.headers.items()}, arguments))
        self.was_asked.set()
        if self.is_stuck:
            try:
                await asyncio.sleep(3600)
            finally:
                self.was_left.set()
        answer = self.answers(arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


@asynccontextmanager
async def serving_tool(**fields: Any) -> AsyncIterator[ToolServer]:
    server = ToolServer(**fields)
    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_post("/{name:.*}", server.answer)
    async with serving_app(app) as url:
        server.url = f"{url}/tool"
        yield server


@dataclass
class HostileServer:
    """Sends raw bytes; the path selects the misbehaviour.

    num_bytes: bytes sent so far. num_hits: requests of the path `/forbidden`.
    """

    url: str = ""
    num_bytes: int = 0
    num_hits: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self._misbehave(head.split(b" ")[1].decode()[1:], writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _misbehave(self, kind: str, writer: asyncio.StreamWriter) -> None:
        if kind == "forbidden":
            self.num_hits += 1
            await self._send(writer, head(content_length=2) + b"{}")
        elif kind in REDIRECTS:
            place = REDIRECTS[kind].format(url=self.url)
            await self._send(writer, head("302 Found", location=place, content_length=0))
        elif kind == "endless_body":
            await self._repeat(writer, head(), b"1" * 65_536)
        elif kind == "endless_chunks":
            await self._repeat(writer, head(transfer_encoding="chunked"), b"1\r\n1\r\n" * 1000)
        elif kind == "endless_headers":
            await self._repeat(writer, b"HTTP/1.1 200 OK\r\n", b"X-More: headers\r\n" * 1000)
        elif kind == "endless_header":
            await self._repeat(writer, b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 65_536)
        elif kind == "endless_continues":
            await self._repeat(writer, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        elif kind == "slow_body":
            await self._repeat(writer, head(), b"1", pause_s=0.02)
        elif kind == "slow_headers":
            await self._repeat(writer, b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", pause_s=0.02)
        elif kind == "silent":
            await asyncio.sleep(3600)
        elif kind == "promised":
            await self._send(writer, head(content_length=50) + b'{"a": ')
            await asyncio.sleep(3600)
        elif kind == "broken_off":
            await self._send(writer, head(content_length=50) + b'{"results": ')
        elif kind == "gzip_bomb":
            bomb = gzip.compress(json.dumps("x" * 10_000_000).encode())
            await self._send(writer, head(content_encoding="gzip", content_length=len(bomb)) + bomb)
        elif kind == "small_gzip":
            small = gzip.compress(b'"' + b"x" * 100_000 + b'"')
            await self._send(writer, head(content_encoding="gzip", content_length=len(small)) + small)
        elif kind == "nonsense":
            await self._send(writer, b"\x00\x01\x02 hello\r\n\r\n")

    async def _repeat(self, writer: asyncio.StreamWriter, first: bytes, again: bytes, *, pause_s: float = 0.0) -> None:
        await self._send(writer, first)
        while True:
            await self._send(writer, again)
            await asyncio.sleep(pause_s)

    async def _send(self, writer: asyncio.StreamWriter, sent: bytes) -> None:
        writer.write(sent)
        await writer.drain()
        self.num_bytes += len(sent)


REDIRECTS = {
    "to_metadata": METADATA,
    "to_file": "file:///etc/passwd",
    "to_gopher": "gopher://127.0.0.1:6379/_FLUSHALL",
    "to_here": "{url}/forbidden",
}


def head(status: str = "200 OK", **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "content-type: application/json", "", ""]).encode()


@asynccontextmanager
async def serving_hostility() -> AsyncIterator[HostileServer]:
    hostile = HostileServer()
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    hostile.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hostile
    finally:
        server.close()
