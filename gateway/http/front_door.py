"""The state that all connections share: their bounds, a clock, and one sweep a second instead of a timer for each."""

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.http.refusal import Refusal
from gateway.http.write_batch import WriteBatch

_log = logging.getLogger(__name__)

NEVER = math.inf
MAX_UNSENT_BYTES = 131072
CROWDED_SHARE = 0.9
"""From this share of `max_connections`, connections that wait for a next request are closed. If these are not enough,
those that sent nothing within `SILENT_S` of connecting are closed, too."""
SILENT_S = 2.0
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    max_connections: int
    head_s: float = 10.0
    """Time for a request's headers to arrive, from connecting or, for a later request, from its first byte."""
    body_s: float = 30.0
    """Time for a body to arrive after its headers. A large body gets more time, by `MIN_BYTES_PER_S`."""
    keep_alive_s: float = 30.0
    """How long a connection may wait for its next request."""
    stalled_s: float = 30.0
    """How long a client may leave our answer unread."""

    @property
    def sweep_s(self) -> float:
        return min(1.0, self.head_s / 4, self.body_s / 4, self.keep_alive_s / 4, self.stalled_s / 4)


class Swept(Protocol):
    """A connection as the sweep sees it. Times are on the front door's clock."""

    deadline: float
    write_deadline: float

    @property
    def is_idle(self) -> bool: ...
    @property
    def is_silent(self) -> bool: ...
    def expire(self) -> None: ...
    def cut(self) -> None: ...


class FrontDoor:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.now = 0.0
        """The clock in seconds, advanced by each sweep. It stops while the event loop is blocked, because data that
        clients have sent is then not read, and our own slowness must not count against them."""
        self.turn_away: Callable[[Mapping[str, Any]], Refusal | None] | None = None
        """Called with the ASGI scope of every request, before any application; returns a refusal or None."""
        self.write_batch = WriteBatch()
        self.refused: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._tell_at = 0.0

    async def sweep_forever(self, connections: Iterable[Swept]) -> None:
        """End every connection whose deadline has passed. `connections` is the server's live set."""
        loop, sweep_s = asyncio.get_running_loop(), self.bounds.sweep_s
        before = loop.time()
        while True:
            await asyncio.sleep(sweep_s)
            elapsed_s, before = loop.time() - before, loop.time()
            self.now += min(elapsed_s, 2 * sweep_s)
            self.sweep(list(connections))
            self._tell()

    def sweep(self, connections: list[Swept]) -> None:
        now = self.now
        for connection in connections:
            if connection.write_deadline <= now:
                self.note("client did not read")
                connection.cut()
            elif connection.deadline <= now:
                connection.expire()
        most = CROWDED_SHARE * self.bounds.max_connections
        if len(connections) >= most:
            idle = [connection for connection in connections if connection.is_idle]
            silent = [connection for connection in connections if connection.is_silent]
            for connection in idle if len(connections) - len(idle) < most else [*idle, *silent]:
                connection.expire()

    def note(self, reason: str) -> None:
        """Count a refusal that no application code saw."""
        self.refused[reason] += 1

    def _tell(self) -> None:
        """Log at most one line a minute, however many refusals there were."""
        if self.now < self._tell_at or self.refused == self._told:
            return
        counts = ", ".join(f"{reason}: {count}" for reason, count in (self.refused - self._told).most_common())
        _log.warning("refused at the front door since the last such line: %s", counts)
        self._told, self._tell_at = Counter(self.refused), self.now + _LOG_EVERY_S


def bound_unsent(listener: socket.socket) -> None:
    """Bound the unsent data that the kernel buffers for a client that does not read; otherwise it would be megabytes.

    Data already in flight in the network does not count, so the speed of a distant client is not limited. Connections
    inherit the option from the listener.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, MAX_UNSENT_BYTES)
