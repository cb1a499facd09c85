"""Rates and latencies over the last seconds, in bounded memory. Times are seconds of the caller's monotonic clock."""

from collections import deque

_MAX_SAMPLES = 512


class Rate:
    """Events per second, over the last `window_s` whole seconds."""

    def __init__(self, window_s: int) -> None:
        self._window_s = window_s
        self._seconds: deque[tuple[int, int]] = deque(maxlen=window_s + 1)
        self._started_s: float | None = None

    def note(self, now_s: float, count: int = 1) -> None:
        if self._started_s is None:
            self._started_s = now_s
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] >= second:
            last, so_far = self._seconds[-1]
            self._seconds[-1] = (last, so_far + count)
        else:
            self._seconds.append((second, count))

    def per_second(self, now_s: float) -> float:
        if self._started_s is None:
            return 0.0
        newest = int(now_s)
        total = sum([count for second, count in self._seconds if newest - self._window_s < second <= newest])
        # Divide by no more seconds than have passed since the first event, or a new rate would look too small.
        return total / min(self._window_s, max(1.0, now_s - self._started_s))


class Latencies:
    """The share of late ones among the last requests."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, bool]] = deque(maxlen=_MAX_SAMPLES)

    def note(self, now_s: float, *, is_late: bool) -> None:
        self._samples.append((now_s, is_late))

    def are_late(self, now_s: float, *, share: float, least: int) -> bool:
        """Whether more than `share` of the requests in the window, and at least `least`, were late."""
        while self._samples and now_s - self._samples[0][0] > self._window_s:
            self._samples.popleft()
        num_late = sum([is_late for _, is_late in self._samples])
        return num_late >= least and num_late > share * len(self._samples)
