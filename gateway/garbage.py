"""When Python looks for garbage: where there is some, and not because thousands of streams have opened.

Requests leave no cycles behind; errors and pages of the console do. Python itself looks once so many more objects were
made than freed, and goes through all that are new: for streams that open, a twentieth of a millisecond each and more,
in stalls, for nothing. So it is told not to, and the objects of connections and of requests under way are set off
against the count.
"""

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 0.25
OBJECTS_A_REQUEST, OBJECTS_A_CONNECTION = 110, 30
"""Containers of a stream under way, and of a client's connection, counted (docs/performance.md); an error of 10 %
shifts a look, and does no harm."""
LEAST_GARBAGE = 50_000
"""Some 10 MB; a look at so many objects takes about 10 ms."""
_OLDER_AFTER = (20, 100)
"""Looks at new objects before one at older ones, and such before one at all."""
_CROWD = 1000 * OBJECTS_A_REQUEST
_CROWD_PATIENCE = 10
"""With so many objects in use, older ones wait so many times as long: they are mostly these."""


class GarbageCollector:
    """In place of Python's own, from `start` on. `num_in_use`: objects of connections and requests."""

    def __init__(self, num_in_use: Callable[[], int]) -> None:
        self._num_in_use = num_in_use
        self._num_before = 0
        """In use since the last look, or longer: they are no new ones."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """What stands now stays: looking through all of it would stop every stream for a tenth of a second."""
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
    """num_new: objects made and not freed since the last look; num_in_use: how many of them are in use.

    A look goes through all that is new, so that there must be as much garbage as there are objects in use."""
    return num_new - num_in_use >= max(LEAST_GARBAGE, num_in_use)


def generation_due(num_young: int, num_middle: int, num_in_use: int) -> int:
    """num_young, num_middle: looks at these generations since the last one at the next."""
    patience = _CROWD_PATIENCE if num_in_use >= _CROWD else 1
    if num_middle >= _OLDER_AFTER[1] * patience:
        return 2
    return 1 if num_young >= _OLDER_AFTER[0] * patience else 0
