"""What the scheduler promises over thousands of steps: fair shares, and that nobody waits for ever."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulation import MAX_SEQS, NUM_BLOCKS, Simulation, make_sequence
from worker.engine.queues import MAX_PASSED

MAX_PROMPT, MAX_OUTPUT = 40, 12
MAX_COST = MAX_PROMPT + 2 * MAX_OUTPUT
NUM_STEPS = 2000
BACKLOG = MAX_SEQS + 1
"""So many that a step cannot admit them all: the flow has somebody waiting all the time."""


@dataclass
class Service:
    """Counts, apart from the scheduler, what each flow was served: a prompt token 1, an output token 2, each once."""

    of: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _num_counted: dict[str, int] = field(default_factory=dict)

    def step(self, simulation: Simulation, *, by_adapter: bool = False) -> None:
        before = {each.request.request_id: each.num_charged for each in simulation.scheduler.live()}
        for chunk in simulation.step():
            request, sequence = chunk.sequence.request, chunk.sequence
            # Cached tokens are served free: the count starts where the first chunk does.
            counted = self._num_counted.setdefault(
                request.request_id, sequence.num_computed - chunk.num_tokens if before[request.request_id] == 0 else 0
            )
            for i in range(counted, sequence.num_computed):
                cost = 1 if i < sequence.num_prompt else 2
                self.of[request.adapter or "" if by_adapter else request.tenant] += cost / request.weight
            self._num_counted[request.request_id] = max(counted, sequence.num_computed)


@dataclass
class Traffic:
    """Keeps flows backlogged with requests of random sizes, at different numbers."""

    simulation: Simulation
    chance: random.Random
    num_made: int = 0

    def top_up(self, count: int, **request: object) -> None:
        waiting = [
            each
            for each in self.simulation.scheduler.live()
            if not each.is_running and all(getattr(each.request, name) == value for name, value in request.items())
        ]
        for _ in range(count - len(waiting)):
            self.num_made += 1
            sequence = make_sequence(
                str(self.num_made),
                prompt_len=self.chance.randint(1, MAX_PROMPT),
                max_tokens=self.chance.randint(1, MAX_OUTPUT),
                first_token=self.num_made * self.chance.randint(0, 1),
                **request,  # type: ignore[arg-type]
            )
            self.simulation.scheduler.add(sequence)


@given(st.integers(0, 2**32), st.floats(0.25, 4.0), st.integers(BACKLOG, 12), st.booleans())
@settings(max_examples=12, deadline=None)
def test_two_backlogged_tenants_are_served_by_weight_within_the_bound(
    seed: int, weight: float, num_waiting: int, has_third: bool
) -> None:
    simulation, service = Simulation(), Service()
    traffic = Traffic(simulation, random.Random(seed))
    gaps = []
    for _ in range(NUM_STEPS):
        traffic.top_up(num_waiting, tenant="a", weight=weight)
        traffic.top_up(BACKLOG, tenant="b", weight=1.0)
        if has_third and traffic.chance.random() < 0.05:
            traffic.top_up(3, tenant="c", weight=1.0)
        service.step(simulation)
        gaps.append(service.of["a"] - service.of["b"])
    bound = MAX_SEQS * MAX_COST / weight + MAX_SEQS * MAX_COST
    assert max(gaps) - min(gaps) <= bound
    # Without turns it would have been exceeded many times over.
    assert min(service.of["a"], service.of["b"]) > 4 * bound


@given(st.integers(0, 2**32), st.integers(BACKLOG, 12))
@settings(max_examples=8, deadline=None)
def test_two_adapters_of_a_tenant_share_alike_within_the_bound(seed: int, num_waiting: int) -> None:
    simulation, service = Simulation(), Service()
    traffic = Traffic(simulation, random.Random(seed))
    gaps = []
    for _ in range(NUM_STEPS):
        traffic.top_up(num_waiting, tenant="a", adapter="x")
        traffic.top_up(BACKLOG, tenant="a", adapter="y")
        service.step(simulation, by_adapter=True)
        gaps.append(service.of["x"] - service.of["y"])
    bound = 2 * MAX_SEQS * MAX_COST
    assert max(gaps) - min(gaps) <= bound
    assert min(service.of.values()) > 4 * bound


@given(st.integers(0, 2**32), st.integers(1, 10), st.lists(st.integers(1, 3), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_under_an_endless_flood_of_class_0_every_lower_request_ends(seed: int, depth: int, classes: list[int]) -> None:
    simulation = Simulation()
    traffic = Traffic(simulation, random.Random(seed))
    traffic.top_up(depth, tenant="flood", priority=0)
    simulation.step()
    lower = {f"lower {i}": priority for i, priority in enumerate(classes)}
    for name, priority in lower.items():
        simulation.scheduler.add(make_sequence(name, prompt_len=30, max_tokens=30, priority=priority, tenant="t"))
    # MAX_PASSED admissions, at worst one after the other, then its own prompt and answer; each waits for all before.
    one_turn = (MAX_PASSED + MAX_SEQS) * (MAX_PROMPT + MAX_OUTPUT) + 30 + 30
    for _ in range(len(lower) * one_turn):
        traffic.top_up(depth, tenant="flood", priority=0)
        simulation.step()
        if lower.keys() <= set(simulation.finished):
            return
    raise AssertionError(f"of {sorted(lower)} ended {sorted(lower.keys() & set(simulation.finished))}")


def test_a_lower_class_is_passed_by_a_bounded_number_of_admissions() -> None:
    simulation = Simulation()
    traffic = Traffic(simulation, random.Random(1))
    traffic.top_up(10, tenant="flood", priority=0)
    simulation.step()
    low = make_sequence("low", prompt_len=4, max_tokens=50, priority=3)
    simulation.scheduler.add(low)
    known = {each.request.request_id for each in simulation.scheduler.live() if each.is_running}
    passed: set[str] = set()
    while not low.is_running:
        traffic.top_up(10, tenant="flood", priority=0)
        passed |= {chunk.sequence.request.request_id for chunk in simulation.step()} - known - {"low"}
    assert MAX_PASSED <= len(passed) <= MAX_PASSED + MAX_SEQS
    while "low" not in simulation.finished:
        traffic.top_up(10, tenant="flood", priority=0)
        simulation.step()
        # Out of turn it goes on as if it were the best.
        assert low.is_running or "low" in simulation.finished
    assert low.num_preempted == 0


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_long_prompt_is_finished_however_many_short_ones_its_tenant_sends(seed: int) -> None:
    simulation = Simulation()
    traffic = Traffic(simulation, random.Random(seed))
    simulation.scheduler.add(make_sequence("long", prompt_len=120, max_tokens=2, tenant="a", first_token=10**6))
    for _ in range(200):
        traffic.top_up(6, tenant="a")
        simulation.step(max_prefill=16)
        if "long" in simulation.finished:
            return
    raise AssertionError("the long prompt starved")


def test_the_pool_is_small_enough_to_run_out() -> None:
    """Else the tests above would not have seen a preemption."""
    simulation = Simulation()
    traffic = Traffic(simulation, random.Random(0))
    for _ in range(500):
        traffic.top_up(4, tenant="a")
        traffic.top_up(4, tenant="b")
        simulation.step()
    assert simulation.scheduler.num_preemptions > 0
    assert NUM_BLOCKS < MAX_SEQS * (MAX_PROMPT + MAX_OUTPUT) / 16
