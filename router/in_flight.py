"""One gateway process's requests in flight at one member, counted live and so more recent than any report."""

from collections import deque

RECENT_S = 10.0
"""The moving average of times to first token expires after this long, so that a once slow member is tried again."""
_NEW_SHARE = 0.2
MEASURED_S = 60.0
"""How long individual times are kept, by which a late first token is recognised."""
_MAX_MEASURED = 128


class InFlight:
    """Times are in seconds of the caller's monotonic clock."""

    __slots__ = ("_measured", "_ttft_at_s", "_ttft_ms", "num_streaming", "num_unanswered")

    def __init__(self) -> None:
        self.num_unanswered = 0
        """Requests that were sent but have no first token yet."""
        self.num_streaming = 0
        """Requests past their first token."""
        self._ttft_ms = 0.0
        self._ttft_at_s = float("-inf")
        self._measured: deque[tuple[float, float]] = deque(maxlen=_MAX_MEASURED)

    @property
    def num_requests(self) -> int:
        return self.num_unanswered + self.num_streaming

    def send(self, now_s: float) -> "Trip":
        """Note that a request is sent to the member. The caller must end the trip in every case."""
        self.num_unanswered += 1
        return Trip(self, now_s)

    def recent_ttft_ms(self, now_s: float) -> float | None:
        """A moving average; None if nothing was measured in the last RECENT_S seconds."""
        return self._ttft_ms if now_s - self._ttft_at_s <= RECENT_S else None

    def note_ttft(self, ttft_ms: float, now_s: float) -> None:
        if self.recent_ttft_ms(now_s) is None:
            self._ttft_ms = ttft_ms
        else:
            self._ttft_ms += _NEW_SHARE * (ttft_ms - self._ttft_ms)
        self._ttft_at_s = now_s
        self._measured.append((now_s, ttft_ms))

    def measured_ms(self, now_s: float) -> list[float]:
        """Times to first token of the last MEASURED_S seconds, at most the newest _MAX_MEASURED."""
        return [ttft_ms for at_s, ttft_ms in self._measured if now_s - at_s <= MEASURED_S]


class Trip:
    """One request at one member, from sending to end."""

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
        """Another replica was faster. This one's time is unknown; the time until now is noted as a lower bound."""
        if not self._has_token and not self._is_over:
            self._in_flight.note_ttft((now_s - self._sent_at_s) * 1000, now_s)
        self.end()

    def end(self) -> None:
        """End the trip. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        if self._has_token:
            self._in_flight.num_streaming -= 1
        else:
            self._in_flight.num_unanswered -= 1
