"""Connections to all members, kept open while idle. One sweep watches all deadlines instead of a timer per request."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from gateway.upstream.http.connection import Connection
from gateway.upstream.http.errors import ConnectionWasStale, TransportFailed, as_transport_failure

KEEP_IDLE_S = 30.0
SWEEP_S = 1.0
LATE_S = 0.25
"""If a timer fires this late, we were slow and not the other side."""


class Origin(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool
    path: str
    """The prefix of all the member's paths, without a slash at its end."""
    host_header: str


@lru_cache(maxsize=1024)
def parse_origin(url: str) -> Origin:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return Origin(parts.hostname or "", port, is_tls, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])


class ConnectionPool:
    """Time limits: `connect_s` for a new connection, `silence_s` between two pieces of an answer, `total_s` for the
    whole exchange."""

    def __init__(self, *, connect_s: float, silence_s: float, total_s: float) -> None:
        self._connect_s, self._silence_s, self._total_s = connect_s, silence_s, total_s
        self._idle: dict[Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def begin(self, origin: Origin, raw: bytes, *, silence_s: float | None = None) -> Connection:
        """Send a request, and return the connection once its status is read; the caller must pass it to `end`.

        silence_s: overrides the pool's. Raises TransportFailed.
        """
        while True:
            connection = self._take_idle(origin) or await self._connect(origin)
            self._busy.add(connection)
            try:
                connection.send(raw)
                connection.silence_s = silence_s or self._silence_s
                await connection.head()
                return connection
            except ConnectionWasStale:
                self._busy.discard(connection)
            except BaseException:
                self._busy.discard(connection)
                connection.abort()
                raise

    def end(self, origin: Origin, connection: Connection) -> None:
        """Keep the connection for another request. If the answer was not read to its end, abort it instead."""
        self._busy.discard(connection)
        if connection.is_idle or (connection.may_linger and not connection.is_closed):
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    @asynccontextmanager
    async def request(self, origin: Origin, raw: bytes) -> AsyncIterator[Connection]:
        """`begin`, with `end` on exit."""
        connection = await self.begin(origin, raw)
        try:
            yield connection
        finally:
            self.end(origin, connection)

    async def sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + SWEEP_S
            await asyncio.sleep(SWEEP_S)
            if loop.time() - due_at < LATE_S:
                self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        """Fail connections that are silent or take too long, and close those that have been idle too long."""
        for connection in list(self._busy):
            if connection.is_awaited and now - connection.active_at > connection.silence_s:
                connection.fail(TransportFailed(f"silent for {connection.silence_s:g} s"))
            elif now - connection.started_at > self._total_s:
                connection.fail(TransportFailed(f"not done within {self._total_s:g} s"))
        for origin, idle in list(self._idle.items()):
            kept = [each for each in idle if each.is_idle and now - each.active_at < KEEP_IDLE_S]
            for connection in set(idle).difference(kept):
                connection.abort()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]

    def close(self) -> None:
        for connection in [*self._busy, *(each for idle in self._idle.values() for each in idle)]:
            connection.abort()
        self._idle.clear()

    def _take_idle(self, origin: Origin) -> Connection | None:
        """The most recently used idle connection. Connections whose answer has not ended are skipped; the sweep closes
        them."""
        idle = self._idle.get(origin, [])
        for i in range(len(idle) - 1, -1, -1):
            if idle[i].is_idle:
                return idle.pop(i)
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            due_at = loop.time() + self._connect_s
            try:
                async with asyncio.timeout_at(due_at):
                    _, connection = await loop.create_connection(
                        lambda: Connection(loop), origin.host, origin.port, ssl=self._tls_for(origin)
                    )
                return connection
            except TimeoutError:
                if loop.time() - due_at < LATE_S:
                    break
            except OSError as error:
                raise as_transport_failure(error) from error
        raise TransportFailed(f"no connection within {self._connect_s:g} s")

    def _tls_for(self, origin: Origin) -> ssl.SSLContext | None:
        if not origin.is_tls:
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
