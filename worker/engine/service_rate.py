"""How fast requests get served, to tell those we refuse when to come back."""

from collections import deque

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class ServiceRate:
    """Requests a second over the last ends; the caller brings the clock."""

    def __init__(self, num_remembered: int = 64) -> None:
        self._ends: deque[float] = deque(maxlen=num_remembered)

    def record(self, now: float) -> None:
        self._ends.append(now)

    def retry_after_s(self, num_waiting: int, now: float) -> float:
        """About when half of those who wait will have been served; between 1 and 60 s."""
        if len(self._ends) < 2:
            return _MIN_RETRY_S
        per_request_s = (now - self._ends[0]) / len(self._ends)
        return min(max(num_waiting / 2 * per_request_s, _MIN_RETRY_S), _MAX_RETRY_S)
