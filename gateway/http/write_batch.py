"""Parts of answers leave together, in the event loop's next turn.

Clients on the same machine, such as a proxy in front of the gateway, are woken by each write, and many woken at once
take less time of the processors than as many woken one by one. Parts of one answer become one write, whoever reads it.
"""

import asyncio
import logging
from typing import Protocol

_log = logging.getLogger(__name__)

MAX_HOLDERS = 32
"""The parts of so many answers leave at once, so that the first does not wait for all the others of a long turn."""


class Holder(Protocol):
    def write_held(self) -> None:
        """Write what is held."""


class WriteBatch:
    """Use on one event loop."""

    def __init__(self) -> None:
        self._holders: list[Holder] = []
        self._is_scheduled = False

    def add(self, holder: Holder) -> None:
        """`holder.write_held` will be called in the loop's next turn, or now with the others if they are many."""
        self._holders.append(holder)
        if len(self._holders) == MAX_HOLDERS:
            self._write()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write_scheduled)

    def _write_scheduled(self) -> None:
        self._is_scheduled = False
        self._write()

    def _write(self) -> None:
        holders, self._holders = self._holders, []
        for holder in holders:
            try:
                holder.write_held()
            except Exception:
                # The others' parts must leave.
                _log.exception("a part of an answer could not be written")
