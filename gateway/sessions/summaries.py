"""The queue of summaries to be written."""

import asyncio
from dataclasses import dataclass

from gateway.domain.principal import Principal

MAX_WAITING = 1000


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """request_id: the request that made messages leave; the summary is billed beside it."""

    principal: Principal
    session_id: str
    request_id: str
    user: str | None


class SummaryQueue:
    def __init__(self) -> None:
        self._waiting: asyncio.Queue[SummaryJob] = asyncio.Queue(MAX_WAITING)

    def ask(self, job: SummaryJob) -> None:
        """Dropped if too many wait: the messages that left stay in the session, whose next turn asks again."""
        if not self._waiting.full():
            self._waiting.put_nowait(job)

    @property
    def num_waiting(self) -> int:
        return self._waiting.qsize()

    async def next(self) -> SummaryJob:
        return await self._waiting.get()
