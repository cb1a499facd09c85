"""Settlements on their way to Redis: handed over without waiting, kept while Redis is away."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.limits.reservation import Outcome

MAX_WAITING = 100_000
"""Beyond it the oldest are given up; the sweep then refunds what they held."""
RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class Settlement:
    keys: tuple[str, ...]
    request_id: str
    tokens: int
    cost_nanousd: int
    outcome: Outcome


class Settlements:
    def __init__(self, send: Callable[[Settlement], Awaitable[bool]]) -> None:
        self._send = send
        self._waiting: deque[Settlement] = deque(maxlen=MAX_WAITING)
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlement: Settlement) -> None:
        """Cannot fail: safe in `finally`."""
        self._waiting.append(settlement)
        self._wake.set()

    async def drain_once(self) -> None:
        """Send what waits; what cannot be sent now stays."""
        while self._waiting:
            settlement = self._waiting.popleft()
            is_sent = False
            try:
                is_sent = await self._send(settlement)
            finally:
                # Also when we are cancelled in between: sending twice does nothing the second time.
                if not is_sent:
                    self._waiting.appendleft(settlement)
            if not is_sent:
                return

    async def drain_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.drain_once()
            if self._waiting:
                await asyncio.sleep(RETRY_S)
                self._wake.set()
