"""One HTTP request and its answer on bare ASGI: a bounded body, headers once, chunks, the client's leaving."""

import asyncio
from collections.abc import Mapping
from functools import cached_property

from starlette.types import Receive, Scope, Send

from gateway.http.errors import BodyTimeout, BodyTooLarge

BODY_DEADLINE_S = 30.0


class ClientGone(Exception):
    """The client closed the connection."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.is_started = False
        """Headers are sent: from here on errors go into the stream."""
        self.status = 0
        self.labels = ("", "")
        """Pool and tier, for metrics."""
        self.extra_headers: dict[str, str] = {}
        """Sent with whatever answer there will be."""

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    @cached_property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._scope["headers"]}

    async def read_body(self, max_bytes: int) -> bytes:
        """Raises BodyTooLarge, BodyTimeout or ClientGone."""
        announced = self.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise BodyTooLarge(max_bytes)
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                return await self._read_body(max_bytes)
        except TimeoutError:
            raise BodyTimeout(f"the body did not arrive within {BODY_DEADLINE_S:g} s") from None

    async def _read_body(self, max_bytes: int) -> bytes:
        chunks, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > max_bytes:
                raise BodyTooLarge(max_bytes)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks) if len(chunks) > 1 else chunk

    async def watch(self) -> None:
        """Raise ClientGone when the client leaves. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientGone

    def note_labels(self, *, pool: str, tier: str) -> None:
        self.labels = (pool, tier)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.is_started, self.status = True, status
        merged = {**self.extra_headers, **headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in merged.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.finish(body)
