"""A budget for retries, so that retries do not double the load on a fleet that is failing under load."""

SHARE = 0.2
"""Retries earned per request."""
RESERVE = 100.0
"""Retries available on top, or as many as requests are under way, since a replica that dies fails all its requests at
once."""
REFILL_PER_S = 10.0


class RetryBudget:
    """The retry budget of one pool in one process. Times are on the caller's clock."""

    __slots__ = ("_at", "_spent")

    def __init__(self, now: float) -> None:
        self._spent = 0.0
        self._at = now

    def note_request(self) -> None:
        if self._spent:
            self._spent = max(self._spent - SHARE, 0.0)

    def spend(self, now: float, *, num_under_way: int) -> bool:
        """Whether one more request may be retried; if so, it is deducted."""
        self._spent = max(self._spent - REFILL_PER_S * (now - self._at), 0.0)
        self._at = now
        if self._spent >= max(RESERVE, num_under_way):
            return False
        self._spent += 1
        return True
