"""How many requests may be sent a second time, so that a dying fleet does not get twice the load that kills it."""

SHARE = 0.2
"""Of requests."""
RESERVE = 100.0
"""And this many, or as many as are under way: a replica that dies takes all of its requests with it at once."""
REFILL_PER_S = 10.0


class RetryBudget:
    """Of one pool, in one process. Times are of the caller's clock."""

    __slots__ = ("_at", "_spent")

    def __init__(self, now: float) -> None:
        self._spent = 0.0
        self._at = now

    def note_request(self) -> None:
        if self._spent:
            self._spent = max(self._spent - SHARE, 0.0)

    def spend(self, now: float, *, num_under_way: int) -> bool:
        """Whether one more may be sent again."""
        self._spent = max(self._spent - REFILL_PER_S * (now - self._at), 0.0)
        self._at = now
        if self._spent >= max(RESERVE, num_under_way):
            return False
        self._spent += 1
        return True
