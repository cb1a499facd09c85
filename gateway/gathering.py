"""Group commit that adapts to the load: how long a batch may grow before it is written."""

MAX_TURNS = 5
"""Iterations of the event loop. Under load they take up to a millisecond each, on an idle loop a few microseconds."""


class Gathering:
    """Lets a batch grow as long as each iteration of the event loop adds something to it.

    A commit and a call of Redis cost nearly as much for one request as for a dozen, and most of it on this process's
    core. PostgreSQL's `commit_delay` waits for a fixed time; here an iteration that adds nothing ends the waiting, so
    that a lone request hardly waits.
    """

    def __init__(self) -> None:
        self._num_seen = self._num_turns = 0

    def waits(self, num_gathered: int) -> bool:
        """Whether the batch should wait for another iteration. Ask once in each iteration until the answer is False,
        which begins the next batch."""
        if num_gathered > self._num_seen and self._num_turns < MAX_TURNS:
            self._num_seen, self._num_turns = num_gathered, self._num_turns + 1
            return True
        self._num_seen = self._num_turns = 0
        return False
