"""A pool's state follows the load and does not flap."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.gate import CALM_S, HOLD_S, Gates, PoolGate
from router.saturation import Thresholds
from tests.support.fleets import fleet, load, member, pool

STEP_S = 0.25


@dataclass
class Queue:
    """One replica's queue, which `capacity` requests a second leave; enterprise always joins, best-effort if it may."""

    capacity: float
    gate: PoolGate = field(default_factory=PoolGate)
    waiting: float = 0.0
    now_s: float = 0.0
    switches_s: list[float] = field(default_factory=list)
    is_closed: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, seconds: float, *, enterprise: float, best_effort: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.now_s += STEP_S
            self._arrive(enterprise, self.gate.note_taken)
            if self.is_closed:
                self._note(best_effort, self.gate.note_kept_away)
            else:
                self._arrive(best_effort, self.gate.note_taken)
            left = min(self.waiting, self.capacity * STEP_S)
            self.waiting -= left
            self._note(left / STEP_S, self.gate.note_end)
            picture = pool("large", member("l", load(waiting=int(self.waiting))))
            state = self.gate.observe(picture, self.now_s)
            if state.is_saturated != self.is_closed:
                self.is_closed = state.is_saturated
                self.switches_s.append(self.now_s)

    def most_switches_in(self, window_s: float) -> int:
        return max((sum(at <= each < at + window_s for each in self.switches_s) for at in self.switches_s), default=0)

    def _arrive(self, rate: float, note: Callable[[float], None]) -> None:
        self.waiting += self._note(rate, note)

    def _note(self, rate: float, note: Callable[[float], None]) -> int:
        num = int(rate * STEP_S + self.chance.random())
        for _ in range(num):
            note(self.now_s)
        return num


def test_a_pool_closes_when_every_replica_is_full_and_not_before() -> None:
    gate = PoolGate()
    one_has_room = pool("p", member("a", load(waiting=11)), member("b", load(waiting=10)))
    assert not gate.observe(one_has_room, 0.0).is_saturated
    no_blocks = pool("p", member("a", load(waiting=11)), member("b", load(free_blocks=1)))
    assert gate.observe(no_blocks, 0.3).is_saturated


def test_a_burst_into_free_slots_fills_nothing() -> None:
    at = member("a", load(running=14))
    for _ in range(60):
        at.in_flight.send(0.0)
    assert not PoolGate().observe(pool("p", at), 0.0).is_saturated, "50 run, 10 wait"
    at.in_flight.send(0.0)
    assert PoolGate().observe(pool("p", at), 0.0).is_saturated


def test_of_a_strangers_slots_nothing_is_known() -> None:
    at = member("a", load(), engine="openai")
    for _ in range(11):
        at.in_flight.send(0.0)
    assert PoolGate().observe(pool("p", at), 0.0).is_saturated


def test_what_counts_as_full_can_be_set() -> None:
    gate = PoolGate(Thresholds(max_waiting=2))
    assert not gate.observe(pool("p", member("a", load(waiting=2))), 0.0).is_saturated
    assert gate.observe(pool("p", member("a", load(waiting=3))), 0.3).is_saturated


def test_steady_overload_closes_a_pool_once() -> None:
    queue = Queue(capacity=20)
    queue.run(120, enterprise=10, best_effort=40)
    assert len(queue.switches_s) == 1 and queue.is_closed


def test_a_pool_opens_soon_after_the_load_ends() -> None:
    queue = Queue(capacity=20)
    queue.run(20, enterprise=10, best_effort=40)
    assert queue.is_closed
    ended_s = queue.now_s
    queue.run(5, enterprise=0, best_effort=0)
    assert not queue.is_closed and queue.switches_s[-1] - ended_s <= CALM_S + 1


def test_it_opens_as_soon_for_those_few_that_still_come() -> None:
    queue = Queue(capacity=20)
    queue.run(20, enterprise=10, best_effort=40)
    queue.run(6, enterprise=0, best_effort=2)
    assert not queue.is_closed


def test_demand_that_has_come_to_fit_is_let_in_and_stays_in() -> None:
    queue = Queue(capacity=20)
    queue.run(5, enterprise=10, best_effort=40)
    queue.run(HOLD_S + 10, enterprise=8, best_effort=6)
    assert not queue.is_closed
    queue.run(60, enterprise=8, best_effort=6)
    assert not queue.is_closed and queue.most_switches_in(HOLD_S) <= 1


@settings(max_examples=60, deadline=None)
@given(capacity=st.floats(4, 200), enterprise=st.floats(0, 1.5), best_effort=st.floats(0, 5), seed=st.integers(0, 99))
def test_under_any_steady_load_a_state_switches_once_in_ten_seconds_at_most(
    capacity: float, enterprise: float, best_effort: float, seed: int
) -> None:
    queue = Queue(capacity=capacity, chance=random.Random(seed))
    queue.run(90, enterprise=enterprise * capacity, best_effort=best_effort * capacity)
    assert queue.most_switches_in(HOLD_S) <= 1


def test_retry_after_is_when_the_queue_will_be_served_at_the_rate_of_now() -> None:
    gate = PoolGate()
    busy = pool("p", member("a", load(waiting=60)))
    for second in range(5):
        for _ in range(4):
            gate.note_end(float(second))
    assert gate.observe(busy, 4.9).retry_after_s == pytest.approx(60 / (20 / 4.9), rel=0.05)
    assert PoolGate().observe(pool("p", member("a")), 0.0).retry_after_s == 1.0


def test_another_gateways_requests_drain_as_fast_as_ours() -> None:
    gate, at = PoolGate(), member("a", load(waiting=40, running=20), own_unanswered=20, own_streaming=10)
    trips = [at.in_flight.send(0.0) for _ in range(30)]
    for trip in trips[:10]:
        trip.note_first_token(0.0)
    for second in range(5):
        for _ in range(2):
            gate.note_end(float(second))
    # Half of what is there is ours, and ours end at 2 a second: 40 that wait are served in 10 s.
    assert gate.observe(pool("p", at), 4.9).retry_after_s == pytest.approx(10, rel=0.05)


def test_best_effort_is_kept_away_before_the_target_is_passed() -> None:
    gate, contended = PoolGate(), pool("p", member("a", load(waiting=3)))
    for i in range(40):
        gate.note_first_token(i / 10, ttft_ms=410 if i >= 37 else 200, target_ms=500)
        gate.note_end(i / 10)
    state = gate.observe(contended, 4.0)
    assert state.is_shedding and not state.is_saturated
    assert state.retry_after_s >= 1
    gate.note_kept_away(8.0)
    assert gate.observe(contended, 9.0).is_shedding
    for now_s in (15.0, 17.1):
        state = gate.observe(contended, now_s)
    assert not state.is_shedding


def test_first_tokens_that_are_late_for_their_own_prompts_keep_nobody_away() -> None:
    gate = PoolGate()
    for i in range(40):
        gate.note_first_token(i / 10, ttft_ms=900, target_ms=500)
    assert not gate.observe(pool("p", member("a")), 4.0).is_shedding


def test_a_replica_that_says_it_is_full_is_believed_for_a_moment() -> None:
    gate, picture = PoolGate(), pool("p", member("a"), member("b", load(waiting=20)))
    gate.note_full("a", 1.0)
    assert gate.observe(picture, 1.2).is_saturated
    assert not gate.observe(picture, 2.1).is_shedding


def test_gates_follow_the_fleet() -> None:
    gates = Gates()
    gates.observe(fleet(pool("a", member("x", load(waiting=50))), pool("b")), 0.0)
    assert (gates.states["a"].is_saturated, gates.states["b"].is_saturated) == (True, False)
    gates.observe(fleet(pool("b")), 1.0)
    assert list(gates.states) == ["b"]
