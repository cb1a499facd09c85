"""Probes whether a process is up: one request over loopback, judged by the answer's first bytes. No HTTP library."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tiergate.up.ports import LOOPBACK

Probe = Callable[[], Awaitable[bool]]
DEADLINE_S = 5.0


def answers_http(port: int, path: str) -> Probe:
    """Whether `GET path` answers 200."""
    request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n".encode()
    return lambda: _exchange(port, request, expected=b"HTTP/1.1 200")


def answers_ping(port: int, *, password: str) -> Probe:
    """Whether a Valkey accepts the password and has loaded its data."""
    return lambda: _exchange(port, f"AUTH {password}\r\nPING\r\n".encode(), expected=b"+OK\r\n+PONG\r\n")


async def _exchange(port: int, request: bytes, *, expected: bytes) -> bool:
    try:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(request)
                return await reader.readexactly(len(expected)) == expected
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
