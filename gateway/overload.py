"""Load shedding: requests that this process cannot carry are refused at once, batch first and enterprise last.

Two quantities are measured, both of this process alone. One is the event loop's lag, that is, how late new input is
handled. The other is the number of requests in preparation: read, but not yet sent to a member. Requests that wait for
a slow store count among these only up to the store's deadline, and the bounds have room for them (2,000 a second for
0.1 s are 200).

A burst may fill the bound on the second quantity. Under lasting overload, though, a full queue only makes every
admitted request wait. So after `BURST_BEATS` of refusals by a loop that lags, the bound is half as high (the idea is
CoDel's, Nichols and Jacobson 2012). A loop that does not lag waits for others, and has room for the whole bound.
"""

import asyncio
import random
import time
from dataclasses import dataclass

from gateway.http.errors import Saturated
from gateway.metrics import PRIORITY_CLASSES, Metrics

BEAT_S = 0.05
BURST_BEATS = 20
"""1 s, or 2 on a loop that lags by as much as a beat."""
_QUIET_BEATS = 10
"""The overload is over after this many beats in a row without a refusal or without lag."""
_BUSY_LAG_S = 0.01
"""At this lag the loop is busy all the time: 64 requests at a time lag by 4 to 7 ms, overload by 30 and more."""
_UNKNOWN = len(PRIORITY_CLASSES) - 1
RETRY_AFTER_S = (1, 2, 3)
"""One of these is chosen at random, so that clients refused together do not come back together."""


@dataclass(frozen=True)
class Bounds:
    """One value for each of PRIORITY_CLASSES, in their order."""

    lag_s: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1, 1.0)
    """A class is refused once the lag reaches its value, until the lag falls below half of it."""
    preparing: tuple[int, ...] = (600, 500, 400, 300, 2400)
    """A class is refused from this many requests in preparation; under lasting overload, from half as many. At 0.3 ms
    each, 600 are 0.2 s of work, during which the loop iterates several times."""


class LoopLag:
    """The lag is the smaller of the last two beats' lateness: a single stall, however long, is not overload."""

    def __init__(self) -> None:
        self._last_s, self.lag_s = 0.0, 0.0

    def note(self, lateness_s: float) -> None:
        self.lag_s = min(self._last_s, lateness_s)
        self._last_s = lateness_s


class Shedder:
    """Decides which classes are refused now. Pure."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._is_lagging = [False] * len(bounds.lag_s)
        self._preparing = list(bounds.preparing)
        self._has_refused = [False] * _UNKNOWN
        self._quiet_beats = [_QUIET_BEATS] * _UNKNOWN
        self._busy_beats = [0] * _UNKNOWN

    def note_beat(self, lag_s: float) -> None:
        for index, bound_s in enumerate(self._bounds.lag_s):
            self._is_lagging[index] = lag_s >= (bound_s / 2 if self._is_lagging[index] else bound_s)
        is_lasting = False
        for index in range(_UNKNOWN):
            is_busy = self._has_refused[index] and lag_s >= _BUSY_LAG_S
            self._has_refused[index] = False
            self._quiet_beats[index] = 0 if is_busy else self._quiet_beats[index] + 1
            self._busy_beats[index] = self._busy_beats[index] + 1 if self._quiet_beats[index] < _QUIET_BEATS else 0
            # Also for all lower classes, which must not be refused after this one.
            is_lasting = is_lasting or self._busy_beats[index] > BURST_BEATS
            self._preparing[index] = self._bounds.preparing[index] // (2 if is_lasting else 1)

    def note_refusal(self, index: int) -> None:
        if index < _UNKNOWN:
            self._has_refused[index] = True

    def refuses(self, index: int, *, num_preparing: int) -> bool:
        return self._is_lagging[index] or num_preparing >= self._preparing[index]


class OverloadGuard:
    def __init__(self, metrics: Metrics, *, bounds: Bounds | None = None, jitter: random.Random | None = None) -> None:
        self._metrics = metrics
        self._lag = LoopLag()
        self._shedder = Shedder(bounds or Bounds())
        self._jitter = jitter or random.Random()
        self.num_preparing = 0
        self._num_arrived = 0
        """Requests that arrived in this iteration of the event loop. Their tasks run in the next one, and until then
        count nowhere else."""

    @property
    def lag_s(self) -> float:
        return self._lag.lag_s

    @property
    def is_shedding(self) -> bool:
        """Whether any class is refused now. Batch is always the first."""
        return self._refuses(_UNKNOWN - 1)

    def note_arrival(self) -> None:
        """Count a request whose task was created and has not run yet."""
        if not self._num_arrived:
            asyncio.get_running_loop().call_soon(self._forget_arrivals)
        self._num_arrived += 1

    def check(self, priority: int) -> None:
        """To be called before the body is read. Raises Saturated if requests of this class are refused now."""
        self._check(_class_of(priority))

    def check_unknown(self) -> None:
        """To be called before the key is looked up. Raises Saturated if requests of unknown keys are refused now."""
        self._check(_UNKNOWN)

    def begin(self, priority: int) -> "Preparation":
        """As `check`; also counts the request until the result's `end` is called."""
        self._check(_class_of(priority))
        return Preparation(self)

    def turns_away(self, priority: int) -> bool:
        """As `check`, but returns whether to refuse, for a caller that answers itself. A refusal is counted."""
        return self._counts_refusal(_class_of(priority))

    def note_beat(self, lateness_s: float) -> None:
        self._lag.note(lateness_s)
        self._shedder.note_beat(self._lag.lag_s)
        self._metrics.loop_lag.set(self._lag.lag_s)

    async def beat_forever(self) -> None:
        """Measure this loop's lag: how late a timer fires, plus the duration of the iteration in which it fires."""
        while True:
            due_s = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            await asyncio.sleep(0)
            self.note_beat(max(0.0, time.monotonic() - due_s))

    def _forget_arrivals(self) -> None:
        self._num_arrived = 0

    def _refuses(self, index: int) -> bool:
        return self._shedder.refuses(index, num_preparing=self.num_preparing + self._num_arrived)

    def _check(self, index: int) -> None:
        if self._counts_refusal(index):
            raise overloaded(self._jitter.choice(RETRY_AFTER_S))

    def _counts_refusal(self, index: int) -> bool:
        if not self._refuses(index):
            return False
        self._shedder.note_refusal(index)
        self._metrics.overload_refusals.add((PRIORITY_CLASSES[index],))
        return True


def overloaded(retry_after_s: int) -> Saturated:
    return Saturated(
        "the gateway has more requests than it can carry; try again soon",
        retry_after_s=retry_after_s,
        code="gateway_overloaded",
    )


def _class_of(priority: int) -> int:
    return priority if 0 <= priority < _UNKNOWN else min(max(priority, 0), _UNKNOWN - 1)


class Preparation:
    """A request on its way to a member. `end` may be called twice: when a member is called, and when the request
    ends."""

    __slots__ = ("_guard", "_is_over")

    def __init__(self, guard: OverloadGuard) -> None:
        self._guard = guard
        self._is_over = False
        guard.num_preparing += 1

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._guard.num_preparing -= 1
