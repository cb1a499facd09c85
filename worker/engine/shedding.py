"""Refuses best-effort work early, so that the rest of the queue and of the blocks is left for the other classes."""

import math

_BEST_EFFORT = 2
_QUEUE_SHARE = 0.8


def max_queued(priority: int, max_waiting: int, *, is_kv_tight: bool) -> int:
    """How many requests may wait once one of this class is accepted."""
    if priority < _BEST_EFFORT:
        return max_waiting
    return 0 if is_kv_tight else math.ceil(_QUEUE_SHARE * max_waiting)
