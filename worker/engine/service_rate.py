"""Measures how fast requests are served, to tell refused clients when to retry."""

from collections import deque

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class ServiceRate:
    """Requests per second of work, over the last requests to end. Idle time, which would look slow, does not count."""

    def __init__(self, num_remembered: int = 64) -> None:
        self._worked_s = 0.0
        self._ends: deque[float] = deque(maxlen=num_remembered)

    def record_step(self, duration_s: float) -> None:
        self._worked_s += duration_s

    def record_end(self) -> None:
        """A request was served, in the step that is recorded next."""
        self._ends.append(self._worked_s)

    def retry_after_s(self, num_waiting: int) -> float:
        """About the time until half of the waiting requests will have been served; between 1 and 60 s."""
        if len(self._ends) < 2:
            return _MIN_RETRY_S
        per_request_s = (self._worked_s - self._ends[0]) / len(self._ends)
        return min(max(num_waiting / 2 * per_request_s, _MIN_RETRY_S), _MAX_RETRY_S)
