"""Runs Python's garbage collector only if there is garbage, not because thousands of streams have opened.

Requests leave no reference cycles behind; errors and console pages do. Python's automatic collection starts once the
number of objects created minus freed passes a threshold, and scans all new objects. For streams that open, this costs
0.05 ms or more each, in stalls, and finds nothing. So automatic collection is disabled, and the objects of open
connections and running requests are subtracted from the count.
"""

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 0.25
OBJECTS_A_REQUEST, OBJECTS_A_CONNECTION = 110, 30
"""Container objects per running stream and per client connection, measured (docs/performance.md). An error of 10 % only
shifts the time of a collection and does no harm."""
LEAST_GARBAGE = 50_000
"""About 10 MB; a collection of this many objects takes about 10 ms."""
_OLDER_AFTER = (20, 100)
"""Collections of the young generation before one of the middle, and of the middle before a full one."""
_CROWD = 1000 * OBJECTS_A_REQUEST
_CROWD_PATIENCE = 10
"""With at least _CROWD objects in use, older generations wait this many times as long: most of them are in use."""


class GarbageCollector:
    """Replaces Python's automatic collection from `start` on. `num_in_use`: objects of connections and requests."""

    def __init__(self, num_in_use: Callable[[], int]) -> None:
        self._num_in_use = num_in_use
        self._num_before = 0
        """Objects that were already in use at the last collection, so not new."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Exclude all existing objects from collection: scanning them would stop every stream for 0.1 s."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._look_forever(loop)

    def _look_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look()
        loop.call_later(LOOK_S, self._look_forever, loop)

    def _look(self) -> None:
        num_in_use = self._num_in_use()
        self._num_before = min(self._num_before, num_in_use)
        num_new, *looks = gc.get_count()
        if is_due(num_new, num_in_use - self._num_before):
            self._num_before = num_in_use
            gc.collect(generation_due(looks[0], looks[1], num_in_use))


def is_due(num_new: int, num_in_use: int) -> bool:
    """Whether to collect. num_new: objects created and not freed since the last collection; num_in_use: how many of
    these are in use.

    A collection scans all new objects, so it is worthwhile only with at least as much garbage as objects in use."""
    return num_new - num_in_use >= max(LEAST_GARBAGE, num_in_use)


def generation_due(num_young: int, num_middle: int, num_in_use: int) -> int:
    """The generation to collect. num_young, num_middle: collections of that generation since the last one of the next
    older generation."""
    patience = _CROWD_PATIENCE if num_in_use >= _CROWD else 1
    if num_middle >= _OLDER_AFTER[1] * patience:
        return 2
    return 1 if num_young >= _OLDER_AFTER[0] * patience else 0
