"""Limits how many batch lines run at once in this process: as many as there is idle capacity for."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.batches.lines import BatchLine
from gateway.batches.results import Outcome
from gateway.domain.batches.models import Batch

LOOK_AGAIN_S = 0.1
"""How often to check again for a free slot."""


class LineRunner(Protocol):
    """Runs a line through the gateway, and tells whether there is capacity for it."""

    def has_room(self, model: str, *, num_own: int) -> bool:
        """Whether the model's pools are idle enough for one more line, besides the `num_own` lines already running."""

    async def run(self, batch: Batch, key_prefix: str, line: int, request: BatchLine) -> Outcome:
        """Raises Later and KeyGone."""


class Pace:
    def __init__(self, runner: LineRunner, *, concurrency: int) -> None:
        self._runner = runner
        self._concurrency = concurrency
        self._freed = asyncio.Event()
        self.num_running = 0

    async def take(self, model: str, *, is_stopped: Callable[[], bool], is_paused: Callable[[], bool]) -> bool:
        """Wait for a slot, which the caller must give back; False if `is_stopped` became true first."""
        while not is_stopped():
            is_free = self.num_running < self._concurrency and not is_paused()
            if is_free and self._runner.has_room(model, num_own=self.num_running):
                self.num_running += 1
                return True
            self._freed.clear()
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._freed.wait()
            except TimeoutError:
                continue
        return False

    def give_back(self) -> None:
        self.num_running -= 1
        self._freed.set()
