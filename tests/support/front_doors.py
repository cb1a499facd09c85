"""A real uvicorn behind our front door, with small ASGI applications, and clients that send raw bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from gateway.http.connection import connections_through
from gateway.http.front_door import Bounds, FrontDoor

DEADLINE_S = 30.0
Application = Callable[..., Awaitable[None]]


@dataclass
class Served:
    """The running server, and what its application saw."""

    port: int
    door: FrontDoor
    server: "_QuietServer"
    scopes: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    num_gone: int = 0
    """Requests whose client left before they were answered."""

    async def send(self, *parts: bytes) -> "Client":
        client = await Client.connect(self.port)
        for part in parts:
            await client.send(part)
        return client

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Send as much as the server accepts."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def read_all(self) -> bytes:
        """Read until the server closes or resets the connection."""
        received = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while chunk := await self.reader.read(65536):
                    received += chunk
        self.writer.close()
        return received

    async def read_answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Read one answer with a Content-Length: its status, headers and body."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = parse_head(head)
            return status, headers, await self.reader.readexactly(int(headers.get(b"content-length", b"0")))

    def close(self) -> None:
        self.writer.close()


def parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n\r\n")[0].split(b"\r\n")
    return int(first.split()[1]), dict(line.lower().split(b": ", 1) for line in lines)


def status_of(received: bytes) -> int:
    assert received.startswith(b"HTTP/1.1 "), received[:200]
    return int(received[9:12])


def request(method: str = "GET", path: str = "/", *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def served(application: Application | None = None, **bounds: Any) -> AsyncIterator[Served]:
    """application: called with (served, scope, receive, send); without it every request is answered `ok`."""
    door = FrontDoor(Bounds(**({"max_connections": 1000} | bounds)))
    listener = socket.create_server(("127.0.0.1", 0))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (application or _answer_ok)(running, scope, receive, send)

    config = uvicorn.Config(
        app,
        http=connections_through(door),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    running = Served(listener.getsockname()[1], door, _QuietServer(config))
    async with asyncio.TaskGroup() as group:
        sweep = group.create_task(door.sweep_forever(running.server.server_state.connections))  # type: ignore[arg-type]
        serving = group.create_task(running.server.serve(sockets=[listener]))
        try:
            yield running
        finally:
            running.server.should_exit = True
            await asyncio.wait_for(serving, DEADLINE_S)
            sweep.cancel()


class _QuietServer(uvicorn.Server):
    capture_signals = staticmethod(suppress)  # type: ignore[assignment]


async def read_body(running: Served, receive: Callable[[], Awaitable[Any]]) -> bytes | None:
    """The body; None if the client left, which is counted in `num_gone`."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            running.num_gone += 1
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


async def answer(send: Callable[[Any], Awaitable[None]], body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _answer_ok(running: Served, scope: Any, receive: Any, send: Any) -> None:
    running.scopes.append(scope)
    body = await read_body(running, receive)
    if body is not None:
        running.bodies.append(body)
        await answer(send, b"ok")
