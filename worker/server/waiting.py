"""Requests that wait for their first token: their positions, and notices that tell a client its stream is alive."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

FIRST_NOTICE_S = 1.0
NEXT_NOTICE_S = 5.0
T = TypeVar("T")


@dataclass
class QueuePositions:
    """Positions by class, then by arrival. They are estimates: fairness between tenants may let a later one pass."""

    _waiting: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _num_seen: int = 0

    def enter(self, who: Hashable, priority: int) -> None:
        self._num_seen += 1
        self._waiting[who] = (priority, self._num_seen)

    def leave(self, who: Hashable) -> None:
        self._waiting.pop(who, None)

    def position(self, who: Hashable, *, num_waiting: int) -> int:
        """1 is next; 0 means already being computed. num_waiting: the engine's count."""
        own = self._waiting[who]
        num_before_or_at = sum(place <= own for place in self._waiting.values())
        num_started = len(self._waiting) - num_waiting
        return max(num_before_or_at - max(num_started, 0), 0)


@dataclass(frozen=True)
class Waiting:
    """position: 1 is next, 0 is being computed."""

    position: int


async def announce_waiting(tokens: AsyncIterator[T], position: Callable[[], int]) -> AsyncGenerator[T | Waiting]:
    """The stream's outputs, preceded by periodic notices until the first one arrives."""
    # A separate task waits, since a timeout would cancel the stream's own wait, which gives up the request.
    first = asyncio.ensure_future(anext(tokens))
    try:
        notice_s = FIRST_NOTICE_S
        while not (await asyncio.wait({first}, timeout=notice_s))[0]:
            yield Waiting(position())
            notice_s = NEXT_NOTICE_S
    finally:
        if not first.done():
            first.cancel()
        elif not first.cancelled():
            # Read even when the client has left, or asyncio would report an exception that nobody retrieved.
            first.exception()
    yield first.result()
    async for output in tokens:
        yield output
