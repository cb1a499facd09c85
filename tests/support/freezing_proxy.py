"""A TCP proxy that can stop forwarding, like a server that hangs, or close all connections, like one that died."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FreezingProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_thawed = asyncio.Event()
        self._is_thawed.set()
        self._is_cut = False
        self.port = 0

    def freeze(self) -> None:
        self._is_thawed.clear()

    def thaw(self) -> None:
        self._is_cut = False
        self._is_thawed.set()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, behind_writer}
        await asyncio.gather(self._pump(reader, behind_writer), self._pump(behind_reader, writer))
        self._writers -= {writer, behind_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                await self._is_thawed.wait()
                writer.write(chunk)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def freezing_proxy(target_port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FreezingProxy]:
    """tls: the TLS context for clients; the connection to the server is not encrypted."""
    proxy = FreezingProxy(target_port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy.thaw()
            proxy.cut()
