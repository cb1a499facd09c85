"""Refusing early: what this process cannot carry is told so at once, batch first and enterprise last.

Two things are measured, and both are our own. The loop's lag: how late something is handled that came in now. And the
requests in preparation: read, while no member was called yet. Requests that wait for a slow store count among these
only up to its deadline, and the bounds have room for them (2,000 a second for 0.1 s are 200).
"""

import asyncio
import random
import time
from dataclasses import dataclass

from gateway.http.errors import Saturated
from gateway.metrics import PRIORITY_CLASSES, Metrics

BEAT_S = 0.05
_UNKNOWN = len(PRIORITY_CLASSES) - 1
RETRY_AFTER_S = (1, 2, 3)
"""One of these, at random: clients that were refused together should not come back together."""


@dataclass(frozen=True)
class Bounds:
    """In the order of PRIORITY_CLASSES."""

    lag_s: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1, 1.0)
    """A lag that lasts this long is too much, until it is half of that."""
    preparing: tuple[int, ...] = (600, 500, 400, 300, 2400)
    """So many are too many: at 0.3 ms each, 600 are 0.2 s of work, in which the loop turns several times."""


class LoopLag:
    """The smaller of the last two beats: one stall, however long, is no overload."""

    def __init__(self) -> None:
        self._last_s, self.lag_s = 0.0, 0.0

    def note(self, lateness_s: float) -> None:
        self.lag_s = min(self._last_s, lateness_s)
        self._last_s = lateness_s


class Shedder:
    """Which classes are refused now. Pure."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._is_lagging = [False] * len(bounds.lag_s)

    def note_lag(self, lag_s: float) -> None:
        for index, bound_s in enumerate(self._bounds.lag_s):
            self._is_lagging[index] = lag_s >= (bound_s / 2 if self._is_lagging[index] else bound_s)

    def refuses(self, index: int, *, num_preparing: int) -> bool:
        return self._is_lagging[index] or num_preparing >= self._bounds.preparing[index]


class OverloadGuard:
    def __init__(self, metrics: Metrics, *, bounds: Bounds | None = None, jitter: random.Random | None = None) -> None:
        self._metrics = metrics
        self._lag = LoopLag()
        self._shedder = Shedder(bounds or Bounds())
        self._jitter = jitter or random.Random()
        self.num_preparing = 0
        self._num_arrived = 0
        """In this turn of the event loop: their tasks run in the next one, however many more are read before."""

    @property
    def lag_s(self) -> float:
        return self._lag.lag_s

    @property
    def is_shedding(self) -> bool:
        """Whether anybody is refused now: batch is the first."""
        return self._refuses(_UNKNOWN - 1)

    def note_arrival(self) -> None:
        """A request's task was made, and has not run yet."""
        if not self._num_arrived:
            asyncio.get_running_loop().call_soon(self._forget_arrivals)
        self._num_arrived += 1

    def check(self, priority: int) -> None:
        """Before the body is read. Raises Saturated when a request of this class is one too many."""
        self._check(_class_of(priority))

    def check_unknown(self) -> None:
        """Before the key is looked up. Raises Saturated when nobody's request is carried."""
        self._check(_UNKNOWN)

    def begin(self, priority: int) -> "Preparation":
        """As `check`, and count the request until the result's `end`."""
        self._check(_class_of(priority))
        return Preparation(self)

    def refuses(self, priority: int) -> bool:
        """As `check`, for a caller that answers the refusal itself. A refusal is counted."""
        return self._counts_refusal(_class_of(priority))

    def note_beat(self, lateness_s: float) -> None:
        self._lag.note(lateness_s)
        self._shedder.note_lag(self._lag.lag_s)
        self._metrics.loop_lag.set(self._lag.lag_s)

    async def beat_forever(self) -> None:
        """Measure this loop's lag: how late a timer fires, and how long the turn takes in which it does."""
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
    """A request on its way to a member. `end` may come twice: when a member is called, and in any case."""

    __slots__ = ("_guard", "_is_over")

    def __init__(self, guard: OverloadGuard) -> None:
        self._guard = guard
        self._is_over = False
        guard.num_preparing += 1

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._guard.num_preparing -= 1
