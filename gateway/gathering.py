"""Group commit that adapts to the load: how long a batch may grow before it is written."""

MAX_S = 0.002
ENOUGH = 32
"""More at once hardly costs less each."""


class Gathering:
    """Lets a batch grow as long as each iteration of the event loop adds something to it, within bounds.

    A commit and a call of Redis cost nearly as much for one request as for a dozen, and most of it on this process's
    core. PostgreSQL's `commit_delay` waits for a fixed time; here an iteration that adds nothing ends the waiting, so
    that a lone request hardly waits. Under so many streams that an iteration takes tens of milliseconds, one adds
    ENOUGH.
    """

    def __init__(self) -> None:
        self._num_seen, self._until_s = 0, 0.0

    def waits(self, num_gathered: int, now_s: float, *, num_expected: int = ENOUGH) -> bool:
        """Whether the batch should wait for another iteration. Ask once in each iteration until the answer is False,
        which begins the next batch. now_s: on any clock. num_expected: how many it can become."""
        if self._num_seen == 0:
            self._until_s = now_s + MAX_S
        if self._num_seen < num_gathered < min(ENOUGH, num_expected) and now_s < self._until_s:
            self._num_seen = num_gathered
            return True
        self._num_seen = 0
        return False
