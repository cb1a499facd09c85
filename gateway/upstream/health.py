"""Which members may get requests: a circuit breaker and a slow start for each. No I/O; times are the caller's clock."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from router.fleet import Member

OPEN_S = 2.0
"""How long a failed member gets no requests; doubled each time that it fails its trial."""
MAX_OPEN_S = 30.0
MAX_STRIKES = 5
"""After this many failures in a row the breaker opens, even if none is fatal (such as an error of the server's own)."""
MAX_FAILED_PROBES = 2
SLOW_FACTOR = 5.0
"""Times to first token of more than this many times the median of the pool's other members open the breaker."""
SLOW_LEAST_MS = 2000.0
"""Times to first token up to this never open the breaker."""
SLOW_START_S = 10.0
LEAST_WEIGHT = 0.1


class Verdict(NamedTuple):
    is_healthy: bool = True
    is_on_trial: bool = False
    weight: float = 1.0


WELL = Verdict()


@dataclass(slots=True)
class _Breaker:
    num_strikes: int = 0
    num_failed_probes: int = 0
    open_s: float = OPEN_S
    open_until: float | None = None
    """None: the breaker is closed. In the past: half open."""
    starts_at: float | None = None
    """When the member's slow start began."""


class Health:
    """A member without an entry is healthy and not in a slow start."""

    def __init__(self) -> None:
        self._breakers: dict[str, _Breaker] = {}

    def note_failure(self, worker_id: str, now: float, *, is_fatal: bool) -> bool:
        """A request to the member failed. is_fatal: the member could not be reached, broke off or fell silent. Returns
        whether the breaker opened."""
        breaker = self._breaker(worker_id)
        breaker.num_strikes += 1
        if not is_fatal and breaker.num_strikes < MAX_STRIKES and breaker.open_until is None:
            return False
        return self._open(breaker, now)

    def note_success(self, worker_id: str, now: float) -> None:
        breaker = self._breakers.get(worker_id)
        if breaker is None:
            return
        breaker.num_strikes = 0
        if breaker.open_until is not None and now >= breaker.open_until:
            self._close(breaker, now)

    def note_probe(self, worker_id: str, now: float, *, is_ready: bool) -> bool:
        """Note the result of a deep check. Returns whether the breaker changed."""
        breaker = self._breakers.get(worker_id)
        if is_ready:
            if breaker is None:
                return False
            breaker.num_failed_probes = 0
            if breaker.open_until is None or now < breaker.open_until:
                return False
            self._close(breaker, now)
            return True
        breaker = breaker or self._breaker(worker_id)
        breaker.num_failed_probes += 1
        if breaker.open_until is None and breaker.num_failed_probes < MAX_FAILED_PROBES:
            return False
        return self._open(breaker, now)

    def note_new(self, worker_id: str, now: float) -> None:
        """Begin the slow start of a new member, whose share of the load grows gradually."""
        self._breaker(worker_id).starts_at = now

    def judge_pool(self, members: Sequence[Member], now: float) -> bool:
        """Open the breakers of members whose first tokens come far later than those of the others. Returns whether any
        breaker opened."""
        measured = [member for member in members if member.is_healthy and member.recent_ttft_ms is not None]
        if len(measured) < 2:
            return False
        num_opened = 0
        for member in measured:
            others = [each.recent_ttft_ms or 0.0 for each in measured if each is not member]
            if (member.recent_ttft_ms or 0.0) > max(SLOW_FACTOR * median(others), SLOW_LEAST_MS):
                num_opened += self._open(self._breaker(member.worker_id), now)
        return num_opened > 0

    def verdict(self, worker_id: str, now: float, *, is_probed: bool) -> Verdict:
        """is_probed: while the breaker is half open, our deep check tries the member instead of a client's request."""
        breaker = self._breakers.get(worker_id)
        if breaker is None:
            return WELL
        if breaker.open_until is not None:
            may_try = now >= breaker.open_until and not is_probed
            return Verdict(is_healthy=may_try, is_on_trial=may_try, weight=LEAST_WEIGHT)
        if breaker.starts_at is None:
            return WELL
        progress = (now - breaker.starts_at) / SLOW_START_S
        if progress >= 1:
            breaker.starts_at = None
            return WELL
        return Verdict(weight=max(progress, LEAST_WEIGHT))

    def state(self, worker_id: str, now: float) -> str:
        """The breaker's state, for people to read."""
        breaker = self._breakers.get(worker_id)
        if breaker is None or (breaker.open_until is None and breaker.starts_at is None):
            return "closed"
        if breaker.open_until is None:
            return "starting"
        return "half-open" if now >= breaker.open_until else "open"

    def probe_at(self, worker_id: str) -> float | None:
        """When a member with an open breaker is due for its trial; None for other members."""
        breaker = self._breakers.get(worker_id)
        return None if breaker is None else breaker.open_until

    def forget_all_but(self, worker_ids: Collection[str]) -> None:
        for gone in self._breakers.keys() - set(worker_ids):
            del self._breakers[gone]

    def _breaker(self, worker_id: str) -> _Breaker:
        return self._breakers.setdefault(worker_id, _Breaker())

    def _open(self, breaker: _Breaker, now: float) -> bool:
        if breaker.open_until is not None:
            if now < breaker.open_until:
                # Failures of requests that were under way when the breaker opened are not news.
                return False
            breaker.open_s = min(2 * breaker.open_s, MAX_OPEN_S)
        breaker.open_until = now + breaker.open_s
        return True

    def _close(self, breaker: _Breaker, now: float) -> None:
        breaker.open_until, breaker.open_s = None, OPEN_S
        breaker.num_strikes = breaker.num_failed_probes = 0
        breaker.starts_at = now
