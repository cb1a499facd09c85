"""What all connections share: their bounds, a clock, and one sweep a second instead of timers for each of them."""

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.http.refusal import Refusal

_log = logging.getLogger(__name__)

NEVER = math.inf
MAX_UNSENT_BYTES = 131072
CROWDED_SHARE = 0.9
"""Above this share of `max_connections`, connections that wait for a next request are closed."""
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    max_connections: int
    head_s: float = 10.0
    """From connecting, or from a later request's first byte, until its headers are whole."""
    body_s: float = 30.0
    """From the headers until the body is whole; a large body gets more, as `MIN_BYTES_PER_S` says."""
    keep_alive_s: float = 30.0
    """How long a connection may wait for its next request."""
    stalled_s: float = 30.0
    """How long a client may leave our answer unread."""

    @property
    def sweep_s(self) -> float:
        return min(1.0, self.head_s / 4, self.body_s / 4, self.keep_alive_s / 4, self.stalled_s / 4)


class Swept(Protocol):
    """A connection, as far as the sweep sees it. Times are on the front door's clock."""

    deadline: float
    write_deadline: float

    @property
    def is_idle(self) -> bool: ...
    def expire(self) -> None: ...
    def cut(self) -> None: ...


class FrontDoor:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.now = 0.0
        """Seconds, renewed by each sweep. It stands still while the event loop is blocked: what a client had sent
        by then is not yet read, and our own slowness is no fault of the client."""
        self.turn_away: Callable[[Mapping[str, Any]], Refusal | None] | None = None
        """Asked with an ASGI scope, before any application is called, and often: whether the request is refused."""
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
        now, is_crowded = self.now, len(connections) >= CROWDED_SHARE * self.bounds.max_connections
        for connection in connections:
            if connection.write_deadline <= now:
                self.note("client did not read")
                connection.cut()
            elif connection.deadline <= now or (is_crowded and connection.is_idle):
                connection.expire()

    def note(self, reason: str) -> None:
        """Count what was refused before any application code saw it."""
        self.refused[reason] += 1

    def _tell(self) -> None:
        """One line a minute, however many there were."""
        if self.now < self._tell_at or self.refused == self._told:
            return
        counts = ", ".join(f"{reason}: {count}" for reason, count in (self.refused - self._told).most_common())
        _log.warning("refused at the front door since the last such line: %s", counts)
        self._told, self._tell_at = Counter(self.refused), self.now + _LOG_EVERY_S


def bound_unsent(listener: socket.socket) -> None:
    """How much the kernel keeps for a client that does not read: without this, megabytes that nobody may ever want.

    What is under way in the network does not count, so that a distant client's speed is not bounded. Connections
    inherit it.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, MAX_UNSENT_BYTES)
