"""Parts of answers leave together: each write may wake a client, and many clients woken at once take less time of the
processors than as many woken one by one."""

import asyncio
from typing import Protocol

MAX_PARTS = 32
"""So that the first of them never waits for all of a long iteration, as those beside thousands of streams are."""


class Holder(Protocol):
    def write_held(self) -> None:
        """Write what is held. Must not raise."""


class WriteBatch:
    """Use on one event loop."""

    def __init__(self) -> None:
        self._holders: list[Holder] = []

    def add(self, holder: Holder) -> None:
        """`holder.write_held` will be called at the end of this iteration of the event loop, or earlier if many hold
        something."""
        if not self._holders:
            asyncio.get_running_loop().call_soon(self._write)
        self._holders.append(holder)
        if len(self._holders) == MAX_PARTS:
            self._write()

    def _write(self) -> None:
        holders, self._holders = self._holders, []
        for holder in holders:
            holder.write_held()
