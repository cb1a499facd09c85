"""Connections to all members, kept while idle; deadlines watched by one sweep instead of a timer a request."""

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
"""A timer that fires this late tells that we were slow, not the other side."""


class Origin(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool
    path: str
    """What stands before every path of the member, without a slash at its end."""
    host_header: str


@lru_cache(maxsize=1024)
def parse_origin(url: str) -> Origin:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return Origin(parts.hostname or "", port, is_tls, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])


class ConnectionPool:
    """`connect_s`: for a new connection; `silence_s`: between two pieces of an answer; `total_s`: for all of it."""

    def __init__(self, *, connect_s: float, silence_s: float, total_s: float) -> None:
        self._connect_s, self._silence_s, self._total_s = connect_s, silence_s, total_s
        self._idle: dict[Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def begin(self, origin: Origin, raw: bytes, *, silence_s: float | None = None) -> Connection:
        """Send a request; the connection, its status read, is to be given to `end`. Raises TransportFailed.

        silence_s: instead of the pool's.
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
        """Keep it for the next request, unless the answer was left before its end: that is aborted."""
        self._busy.discard(connection)
        if connection.is_idle or (connection.may_linger and not connection.is_closed):
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    @asynccontextmanager
    async def request(self, origin: Origin, raw: bytes) -> AsyncIterator[Connection]:
        """From `begin` to `end`."""
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
        """Fail what is silent or takes too long, close what has been idle."""
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
        """The one used last. What lingers is passed over; the sweep ends it."""
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
