"""What one gateway process has under way at one member: counted live, and so newer than any report."""

from collections import deque

RECENT_S = 10.0
"""A time to first token is forgotten after this long, so that a member that was slow once is tried again."""
_NEW_SHARE = 0.2
MEASURED_S = 60.0
"""For how long single times are kept, to tell a late first token by."""
_MAX_MEASURED = 128


class InFlight:
    """Times are of the caller's monotonic clock, in seconds."""

    __slots__ = ("_measured", "_ttft_at_s", "_ttft_ms", "num_streaming", "num_unanswered")

    def __init__(self) -> None:
        self.num_unanswered = 0
        """Sent, without a first token yet."""
        self.num_streaming = 0
        """Past their first token."""
        self._ttft_ms = 0.0
        self._ttft_at_s = float("-inf")
        self._measured: deque[tuple[float, float]] = deque(maxlen=_MAX_MEASURED)

    @property
    def num_requests(self) -> int:
        return self.num_unanswered + self.num_streaming

    def send(self, now_s: float) -> "Trip":
        """A request leaves for the member; the caller ends the trip in any case."""
        self.num_unanswered += 1
        return Trip(self, now_s)

    def recent_ttft_ms(self, now_s: float) -> float | None:
        """A moving average; None where nothing was measured lately."""
        return self._ttft_ms if now_s - self._ttft_at_s <= RECENT_S else None

    def note_ttft(self, ttft_ms: float, now_s: float) -> None:
        if self.recent_ttft_ms(now_s) is None:
            self._ttft_ms = ttft_ms
        else:
            self._ttft_ms += _NEW_SHARE * (ttft_ms - self._ttft_ms)
        self._ttft_at_s = now_s
        self._measured.append((now_s, ttft_ms))

    def measured_ms(self, now_s: float) -> list[float]:
        """The last minute's times to first tokens, the newest of them at most."""
        return [ttft_ms for at_s, ttft_ms in self._measured if now_s - at_s <= MEASURED_S]


class Trip:
    """One request at one member, from its sending to its end."""

    __slots__ = ("_has_token", "_in_flight", "_is_over", "_sent_at_s")

    def __init__(self, in_flight: InFlight, sent_at_s: float) -> None:
        self._in_flight = in_flight
        self._sent_at_s = sent_at_s
        self._has_token = self._is_over = False

    def note_first_token(self, now_s: float) -> None:
        if self._has_token or self._is_over:
            return
        self._has_token = True
        self._in_flight.num_unanswered -= 1
        self._in_flight.num_streaming += 1
        self._in_flight.note_ttft((now_s - self._sent_at_s) * 1000, now_s)

    def give_up(self, now_s: float) -> None:
        """Another replica was quicker: how long this one took is not known, but so long at least."""
        if not self._has_token and not self._is_over:
            self._in_flight.note_ttft((now_s - self._sent_at_s) * 1000, now_s)
        self.end()

    def end(self) -> None:
        """Harmless when it is over."""
        if self._is_over:
            return
        self._is_over = True
        if self._has_token:
            self._in_flight.num_streaming -= 1
        else:
            self._in_flight.num_unanswered -= 1
