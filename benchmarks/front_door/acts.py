"""Ways to misuse connections: to flood, fill, hold, leave unread, or abandon them. A kind of abuse is one of these acts
with certain bytes."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle

CHAT = "/v1/chat/completions"
_READ_BYTES = 65536
_GIVE_UP_S = 1.0


@dataclass(frozen=True)
class Victim:
    port: int
    key: str
    model: str
    seconds: float
    """How long each abuse lasts."""

    def head(self, *headers: str, method: str = "POST", path: str = CHAT, key: str | None = None) -> bytes:
        bearer = [] if key is None else [f"Authorization: Bearer {key}"]
        lines = [f"{method} {path} HTTP/1.1", "Host: a", "Content-Type: application/json", *bearer, *headers]
        return "\r\n".join(lines).encode() + b"\r\n"

    def post(self, body: bytes, *headers: str, path: str = CHAT, key: str | None = None) -> bytes:
        return self.head(f"Content-Length: {len(body)}", *headers, path=path, key=key) + b"\r\n" + body

    def stream(self, num_chunks: int) -> bytes:
        """A request whose answer is a long stream; benchmarks/gateway/native/upstream.c parses the brackets."""
        text = (
            b'{"model":"%b","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"[%d chunks, 5 ms]"}]}'
        )
        return self.post(text % (self.model.encode(), num_chunks, num_chunks), key=self.key)


Act = Callable[[Victim], Awaitable[None]]


@dataclass
class _Line:
    """A connection that tolerates being closed by the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_cut: bool = False

    async def send(self, data: bytes) -> bool:
        """False once the server has closed the connection or accepts no more data."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(_GIVE_UP_S):
                await self.writer.drain()
        except (ConnectionError, TimeoutError):
            self.is_cut = True
        return not self.is_cut

    async def read(self, *, seconds: float = _GIVE_UP_S) -> None:
        """Read until the server closes the connection or is silent."""
        with suppress(ConnectionError, TimeoutError):
            while True:
                async with asyncio.timeout(seconds):
                    if not await self.reader.read(_READ_BYTES):
                        return

    async def read_once(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                await self.reader.read(_READ_BYTES)


async def _use(victim: Victim, use: Callable[[_Line], Awaitable[object]], *, reset: bool = False) -> None:
    """Use one connection, whether or not it can be opened or is closed by the server."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
    except OSError:
        await asyncio.sleep(0.05)
        return
    try:
        await use(_Line(reader, writer))
    finally:
        if reset:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def _again_and_again(
    victim: Victim, use: Callable[[_Line], Awaitable[object]], *, at_once: int, reset: bool = False
) -> None:
    """Use one connection after another, `at_once` of them at any time."""
    ends_at = time.monotonic() + victim.seconds

    async def one_after_the_other() -> None:
        while time.monotonic() < ends_at:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, ends_at - time.monotonic())):
                    await _use(victim, use, reset=reset)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))


def flood(payload: Callable[[Victim], Iterator[bytes]], *, at_once: int = 8) -> Act:
    """A new connection for each payload; the first part of each answer is read."""

    async def act(victim: Victim) -> None:
        payloads = payload(victim)

        async def use(line: _Line) -> None:
            if await line.send(next(payloads)):
                await line.read_once()

        await _again_and_again(victim, use, at_once=at_once)

    return act


def endless(start: Callable[[Victim], bytes], more: bytes, *, at_once: int = 2) -> Act:
    """Send `more` for as long as the server accepts it."""

    async def act(victim: Victim) -> None:
        async def use(line: _Line) -> None:
            await line.send(start(victim))
            while await line.send(more):
                pass

        await _again_and_again(victim, use, at_once=at_once)

    return act


def held(payload: Callable[[Victim], bytes], *, connections: int = 300, trickle: bytes = b"") -> Act:
    """Open connections and hold them; with `trickle`, send a byte now and then.

    Opening is spread over a quarter of the time, since a burst of connections is another abuse.
    """

    async def act(victim: Victim) -> None:
        ends_at = time.monotonic() + victim.seconds
        opening_s = victim.seconds / 4
        drops = cycle([trickle[i : i + 1] for i in range(len(trickle))] or [b""])

        async def use(line: _Line) -> None:
            await line.send(payload(victim))
            while time.monotonic() < ends_at and not line.is_cut:
                await asyncio.sleep(0.2)
                if trickle:
                    await line.send(next(drops))

        async def one(i: int) -> None:
            await asyncio.sleep(opening_s * i / connections)
            await _use(victim, use)

        await asyncio.gather(*map(one, range(connections)))

    return act


def unread(payload: Callable[[Victim], bytes], *, connections: int = 50) -> Act:
    """Send a request and never read the answer."""

    async def act(victim: Victim) -> None:
        async def one() -> None:
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.setblocking(False)
                loop = asyncio.get_running_loop()
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_GIVE_UP_S):
                        await loop.sock_connect(connection, ("127.0.0.1", victim.port))
                        await loop.sock_sendall(connection, payload(victim))
                await asyncio.sleep(victim.seconds)

        await asyncio.gather(*(one() for _ in range(connections)))

    return act


def left(payload: Callable[[Victim], bytes], *, half: bool = False, at_once: int = 8) -> Act:
    """Send a request, read a little and leave: by a reset or, with `half`, after closing the sending half."""

    async def act(victim: Victim) -> None:
        async def use(line: _Line) -> None:
            await line.send(payload(victim))
            if half:
                with suppress(OSError):
                    line.writer.write_eof()
            await line.read_once()

        await _again_and_again(victim, use, at_once=at_once, reset=not half)

    return act


def byte_by_byte(payload: Callable[[Victim], bytes]) -> Act:
    async def act(victim: Victim) -> None:
        async def use(line: _Line) -> None:
            for byte in payload(victim):
                if not await line.send(bytes([byte])):
                    return
                await asyncio.sleep(0)
            await line.read_once()

        await _again_and_again(victim, use, at_once=4)

    return act
