"""Whether a pool takes requests that could go elsewhere, as a state that follows the load without flapping.

| constant   | value | why                                                                                        |
|------------|-------|--------------------------------------------------------------------------------------------|
| CALM_S     | 2     | queues must be short for this long (four reports) before a closed pool opens               |
| HOLD_S     | 10    | minimum time between two switches while requests are still being kept away                 |
| MAX_HOLD_S | 80    | HOLD_S doubles, up to this, each time a pool that opened under demand closes in RELAPSE_S  |
| RELAPSE_S  | 30    |                                                                                            |
| GAP        | 6     | a pause of this many mean intervals between kept-away requests means that the load ended   |
| MAX_GAP_S  | 4.5   | upper bound of that pause: a pool is open again within 5 s of the load's end               |
| HEADROOM   | 0.9   | a pool opens under demand only if demand is below this share of its throughput when full   |
| LATE_AT    | 0.8   | share of the target from which a first token counts as late, so shedding begins in time    |

A pool closes as soon as every replica is full. From then on its queues may be short because requests are kept away, not
because they have stopped coming. So the pool opens soon (CALM_S) if no requests come or wait any more; otherwise only
if the expected demand fits into its known throughput.
"""

from router.fleet import Fleet, Pool
from router.meters import Latencies, Rate
from router.saturation import DEFAULT_THRESHOLDS, PoolState, Thresholds, is_pool_calm, is_pool_full, num_waiting

CALM_S, HOLD_S, MAX_HOLD_S, RELAPSE_S = 2.0, 10.0, 80.0, 30.0
HEADROOM = 0.9
GAP, MAX_GAP_S = 6.0, 4.5
SPENT_S = 5.0
LATE_AT, LATE_SHARE, _LEAST_LATE = 0.8, 0.05, 2
_RATE_WINDOW_S = 5
_LATENCY_WINDOW_S = 10.0
_SAID_FULL_S = 1.0
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class Door:
    """An open or closed state with hysteresis. Pure except for its own memory."""

    def __init__(self) -> None:
        self.is_closed = False
        self.num_switches = 0
        self._switched_s = float("-inf")
        self._calm_since_s: float | None = None
        self._hold_s = HOLD_S
        self._opened_under_demand = False

    def observe(self, now_s: float, *, must_close: bool, is_calm: bool, is_over: bool, fits: bool) -> None:
        """is_over: the load seems to have ended. fits: there is room for all of the demand."""
        if not self.is_closed:
            if must_close and not (self._opened_under_demand and now_s - self._switched_s < HOLD_S):
                self._close(now_s)
            return
        if not is_calm:
            self._calm_since_s = None
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        if now_s - self._calm_since_s < CALM_S:
            return
        if is_over:
            self._hold_s = HOLD_S
            self._open(now_s, under_demand=False)
        elif fits and now_s - self._switched_s >= self._hold_s:
            self._open(now_s, under_demand=True)

    def hold_left_s(self, now_s: float) -> float:
        return max(0.0, self._switched_s + self._hold_s - now_s) if self.is_closed else 0.0

    def _close(self, now_s: float) -> None:
        has_relapsed = self._opened_under_demand and now_s - self._switched_s < RELAPSE_S
        self._hold_s = min(2 * self._hold_s, MAX_HOLD_S) if has_relapsed else HOLD_S
        self._switch(now_s, is_closed=True)

    def _open(self, now_s: float, *, under_demand: bool) -> None:
        self._opened_under_demand = under_demand
        self._switch(now_s, is_closed=False)

    def _switch(self, now_s: float, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self.num_switches += 1
        self._switched_s, self._calm_since_s = now_s, None


class PoolGate:
    """The state of one pool in one gateway process, from the shared picture and the process's own requests."""

    def __init__(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> None:
        self._thresholds = thresholds
        self.saturation, self.shedding = Door(), Door()
        self._taken, self._kept_away, self._ended = (Rate(_RATE_WINDOW_S) for _ in range(3))
        self._capacity: float | None = None
        self._kept_away_s = float("-inf")
        self._latencies = Latencies(_LATENCY_WINDOW_S)
        self._full_at_s: dict[str, float] = {}
        self._spent_until_s = float("-inf")

    def note_taken(self, now_s: float) -> None:
        self._taken.note(now_s)

    def note_kept_away(self, now_s: float) -> None:
        """A request for this pool went elsewhere or was refused, for lack of room here."""
        self._kept_away.note(now_s)
        self._kept_away_s = now_s

    def note_end(self, now_s: float) -> None:
        self._ended.note(now_s)

    def note_full(self, worker_id: str, now_s: float) -> None:
        """A replica refused a request as full, whatever its report says."""
        self._full_at_s[worker_id] = now_s

    def note_spent(self, now_s: float) -> None:
        """The pool's budget is used up: try it again after SPENT_S."""
        self._spent_until_s = now_s + SPENT_S

    def note_first_token(self, now_s: float, *, ttft_ms: float, target_ms: float) -> None:
        """Note the time to first token of a request whose tier has a target."""
        self._latencies.note(now_s, is_late=ttft_ms > LATE_AT * target_ms)

    def observe(self, pool: Pool, now_s: float) -> PoolState:
        self._full_at_s = {each: at_s for each, at_s in self._full_at_s.items() if now_s - at_s < _SAID_FULL_S}
        is_full = is_pool_full(pool, self._thresholds, said_full=self._full_at_s)
        # If no request waits, a first token is late because of its own prompt's length, which shedding does not help.
        is_late = self._latencies.are_late(now_s, share=LATE_SHARE, least=_LEAST_LATE)
        is_pressed = is_late and num_waiting(pool) > 0
        ended = self._ended.per_second(now_s)
        if (is_full or is_pressed) and ended > 0:
            self._capacity = ended if self._capacity is None else max(ended, 0.8 * self._capacity + 0.2 * ended)
        kept_away = self._kept_away.per_second(self._kept_away_s)
        demand = self._taken.per_second(now_s) + self._kept_away.per_second(now_s)
        # Requests arrive at random, so the rarer they are, the longer the gaps between them.
        gap_s = min(max(GAP / kept_away, CALM_S), MAX_GAP_S) if kept_away > 0 else CALM_S
        is_over = now_s - self._kept_away_s >= gap_s and num_waiting(pool) == 0
        fits = self._capacity is not None and demand <= HEADROOM * self._capacity
        is_calm = is_pool_calm(pool, self._thresholds) or not pool.replicas.usable
        self.saturation.observe(now_s, must_close=is_full, is_calm=is_calm, is_over=is_over, fits=fits)
        is_relaxed = not is_late or num_waiting(pool) == 0
        self.shedding.observe(now_s, must_close=is_pressed, is_calm=is_relaxed, is_over=is_over, fits=fits)
        return PoolState(
            is_saturated=self.saturation.is_closed or now_s < self._spent_until_s,
            is_shedding=self.shedding.is_closed,
            retry_after_s=self._retry_after_s(pool, now_s, ended),
        )

    def _retry_after_s(self, pool: Pool, now_s: float, ended: float) -> float:
        """How long until the queues are likely to be short, at the current rate of finished requests."""
        hold_s = max(self.saturation.hold_left_s(now_s), self.shedding.hold_left_s(now_s))
        waiting = num_waiting(pool)
        own = sum([replica.member.in_flight.num_requests for replica in pool.replicas.usable])
        everybody = sum([replica.num_waiting + replica.num_running for replica in pool.replicas.usable])
        # Other gateways' requests end, too, in proportion to their number at these replicas.
        rate = ended * everybody / own if own else ended
        drain_s = waiting / rate if rate > 0 else 0.0
        return min(max(drain_s, hold_s, _MIN_RETRY_S), _MAX_RETRY_S)


class Gates:
    """The gates of all pools; `states` holds their states as of the last `observe`."""

    def __init__(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> None:
        self.thresholds = thresholds
        self._gates: dict[str, PoolGate] = {}
        self.states: dict[str, PoolState] = {}

    def of(self, pool: str) -> PoolGate:
        gate = self._gates.get(pool)
        if gate is None:
            gate = self._gates[pool] = PoolGate(self.thresholds)
        return gate

    def observe(self, fleet: Fleet, now_s: float) -> None:
        """Update the state of every pool."""
        self._gates = {name: gate for name, gate in self._gates.items() if name in fleet.pools}
        self.states = {name: self.of(name).observe(pool, now_s) for name, pool in fleet.pools.items()}
