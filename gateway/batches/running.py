"""Runs the lines of one batch, as many at a time as there is capacity for. A refused line pauses the whole batch."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from gateway.batches.journal import Journal
from gateway.batches.lines import BatchLine, Lines, parse_line
from gateway.batches.pace import LineRunner, Pace
from gateway.batches.results import KeyGone, Later, Outcome
from gateway.domain.batches.models import Batch

CANCEL_GRACE_S = 10.0
"""Time for answers under way to finish when a batch is stopped."""
MAX_PAUSE_S = 30.0
"""Longest pause before a refused line is tried again."""
MAX_FAILURES = 3
"""Server failures per line; the last of them becomes the line's result."""


class LinesRun:
    def __init__(
        self, batch: Batch, find_prefix: Callable[[], Awaitable[str]], journal: Journal, runner: LineRunner, pace: Pace
    ) -> None:
        """find_prefix: returns the current prefix of the API key on whose behalf the batch runs."""
        self._batch = batch
        self._find_prefix = find_prefix
        self._prefix: str | None = None
        self._journal = journal
        self._runner = runner
        self._pace = pace
        self._paused_until_s = 0.0
        self._stopping = asyncio.Event()
        self.is_key_gone = False

    def stop(self) -> None:
        """Start no more lines; lines under way get CANCEL_GRACE_S to finish."""
        self._stopping.set()

    async def run_all(self, lines: AsyncIterator[Lines], *, done: Collection[int]) -> None:
        """Returns when every line has a result, or at most CANCEL_GRACE_S after `stop`."""
        async with asyncio.TaskGroup() as group:
            tasks: set[asyncio.Task[None]] = set()
            stopper = group.create_task(self._cut_off(tasks))
            async for some in lines:
                for number, line in some:
                    if number not in done and await self._take_slot():
                        request, _ = parse_line(line, self._batch.endpoint)
                        task = group.create_task(self._run(number, request))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                if self._stopping.is_set():
                    break
            while tasks:
                await asyncio.wait(tasks)
            stopper.cancel()

    async def _take_slot(self) -> bool:
        return await self._pace.take(
            self._batch.model or "",
            is_stopped=self._stopping.is_set,
            is_paused=lambda: time.monotonic() < self._paused_until_s,
        )

    async def _run(self, number: int, request: BatchLine) -> None:
        """Run a line until it has a result. The caller has taken a slot, which this gives back."""
        num_failures, outcome = 0, None
        while outcome is None:
            prefix = self._prefix = self._prefix or await self._find_prefix()
            try:
                outcome = await self._try(prefix, number, request)
            except Later as error:
                num_failures += error.failure is not None
                if num_failures == MAX_FAILURES:
                    outcome = error.failure
                else:
                    self._paused_until_s = time.monotonic() + min(error.retry_after_s, MAX_PAUSE_S)
                    if not await self._take_slot():
                        return
            except KeyGone:
                # A rotated key has another prefix.
                self._prefix = await self._find_prefix()
                if self._prefix == prefix:
                    self.is_key_gone = True
                    return self.stop()
                if not await self._take_slot():
                    return
        await self._journal.put(number, outcome)

    async def _try(self, prefix: str, number: int, request: BatchLine) -> Outcome:
        try:
            return await self._runner.run(self._batch, prefix, number, request)
        finally:
            self._pace.give_back()

    async def _cut_off(self, tasks: Collection["asyncio.Task[None]"]) -> None:
        await self._stopping.wait()
        await asyncio.sleep(CANCEL_GRACE_S)
        for task in list(tasks):
            task.cancel()
