"""Counts the requests being served, so that a drain can wait for the last one."""

import asyncio
from types import TracebackType


class Activity:
    """A context manager that each request enters. Belongs to one event loop."""

    def __init__(self) -> None:
        self.num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.num_active += 1
        self._idle.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.num_active -= 1
        if self.num_active == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()
