"""One process slot of a gateway, whose child changes over time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.processes.child import Child
from gateway.processes.restarts import Restarts

_log = logging.getLogger(__name__)

READY_WITHIN_S = 120.0


class GaveUp(Exception):
    """No child serves and none will start. `exit_code` is that of the last child."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class Slot:
    """The slot's listening socket stays open when its child changes."""

    def __init__(
        self,
        number: int,
        *,
        start: Callable[[int], Awaitable[Child]],
        is_hopeless: Callable[[int, Restarts], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.number = number
        self.child: Child | None = None
        """The child that serves, if any."""
        self.has_served = asyncio.Event()
        self._start = start
        self._is_hopeless = is_hopeless
        self._on_change = on_change
        self._restarts = Restarts()

    @property
    def is_vacant(self) -> bool:
        """Whether connections may arrive that no child of this slot accepts."""
        return self.child is None and self.has_served.is_set()

    async def keep(self) -> None:
        """Keep a serving child in the slot, for ever. Raises GaveUp."""
        while True:
            if self.child is None:
                await self._try_to_start()
            else:
                await self._until_it_goes(self.child)

    async def replace(self) -> bool:
        """Start a successor, then stop the serving child. False if the successor did not start."""
        successor = await self._started()
        if not isinstance(successor, Child):
            return False
        self._install(successor)
        return True

    async def _try_to_start(self) -> None:
        child = await self._started()
        if isinstance(child, Child):
            self._install(child)
            return
        if self._is_hopeless(child, self._restarts):
            raise GaveUp(child if child > 0 else 1)
        _log.error("process %d did not start (status %d); trying again", self.number, child)
        await asyncio.sleep(self._restarts.pause_s)

    async def _until_it_goes(self, child: Child) -> None:
        await child.gone.wait()
        if self.child is not child:
            return
        self.child = None
        self._on_change()
        if child.is_leaving:
            _log.warning("process %d (pid %d) was told to stop; starting another", self.number, child.pid)
            return
        await child.ended.wait()
        self._restarts.note(lived_s=child.age_s, was_ready=True)
        _log.error("process %d (pid %d) died with status %s; starting another", self.number, child.pid, child.status)
        await asyncio.sleep(self._restarts.pause_s)

    def _install(self, child: Child) -> None:
        former, self.child = self.child, child
        self.has_served.set()
        self._on_change()
        if former is not None:
            former.stop()

    async def _started(self) -> Child | int:
        """A child that is ready, or the exit status of a child that failed to start."""
        try:
            child = await self._start(self.number)
        except OSError as error:
            _log.error("process %d cannot be started: %s", self.number, error)
            self._restarts.note(lived_s=0, was_ready=False)
            return 1
        if await _is_ready_in_time(child):
            return child
        self._restarts.note(lived_s=child.age_s, was_ready=False)
        return child.status if child.status is not None else 1


async def _is_ready_in_time(child: Child) -> bool:
    """Whether the child becomes ready within READY_WITHIN_S; otherwise it is killed."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (child.ready, child.ended)]
    try:
        await asyncio.wait(waiting, timeout=READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    if not child.ready.is_set() and not child.ended.is_set():
        child.kill()
        await child.ended.wait()
    return child.ready.is_set() and not child.gone.is_set()
