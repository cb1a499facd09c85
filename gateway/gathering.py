"""Group commit that adapts to the load: how long a batch may grow before it is written."""

MAX_S = 0.002
ENOUGH = 32
"""More at once hardly costs less each."""
NUM_SKIPPED = 16


class Gathering:
    """Lets a batch grow as long as each iteration of the event loop adds something to it, within bounds.

    A commit and a call of Redis cost nearly as much for one request as for a dozen, and most of it on this process's
    core. PostgreSQL's `commit_delay` waits for a fixed time; here an iteration that adds nothing ends the waiting, so
    that a lone request hardly waits. Nothing waits while iterations are long, as they are beside thousands of streams:
    after an iteration of more than MAX_S, the next NUM_SKIPPED batches leave at once.
    """

    def __init__(self) -> None:
        self._num_seen = self._num_to_skip = 0
        self._began_s = self._asked_s = 0.0

    def waits(self, num_gathered: int, now_s: float, *, num_expected: int = ENOUGH) -> bool:
        """Whether the batch should wait for another iteration. To be asked once in each iteration. now_s: on any
        clock. num_expected: how many it can become."""
        if self._num_seen == 0:
            self._began_s = self._asked_s = now_s
        if now_s - self._asked_s > MAX_S:
            self._num_to_skip = NUM_SKIPPED
        self._asked_s = now_s
        if self._num_to_skip or now_s - self._began_s > MAX_S:
            return False
        if not self._num_seen < num_gathered < min(ENOUGH, num_expected):
            return False
        self._num_seen = num_gathered
        return True

    def leave(self) -> None:
        """The batch leaves, and the next one begins."""
        self._num_seen, self._num_to_skip = 0, max(0, self._num_to_skip - 1)
