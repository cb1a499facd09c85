"""How fast requests get served, to tell those we refuse when to come back."""

from collections import deque

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class ServiceRate:
    """Requests a second of work over the last ends. Idle time is not counted: it would look like slowness."""

    def __init__(self, num_remembered: int = 64) -> None:
        self._worked_s = 0.0
        self._ends: deque[float] = deque(maxlen=num_remembered)

    def record_step(self, duration_s: float) -> None:
        self._worked_s += duration_s

    def record_end(self) -> None:
        """A request was served, in the step that is recorded next."""
        self._ends.append(self._worked_s)

    def retry_after_s(self, num_waiting: int) -> float:
        """About when half of those who wait will have been served; between 1 and 60 s."""
        if len(self._ends) < 2:
            return _MIN_RETRY_S
        per_request_s = (self._worked_s - self._ends[0]) / len(self._ends)
        return min(max(num_waiting / 2 * per_request_s, _MIN_RETRY_S), _MAX_RETRY_S)
