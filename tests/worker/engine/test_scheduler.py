"""The scheduler driven by hypothesis, with counting in place of a model."""

from dataclasses import asdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.simulation import BUDGET, MAX_LEN, MAX_SEQS, NUM_BLOCKS, Simulation, make_sequence
from worker.engine.blocks import BlockPool
from worker.engine.request import EngineRequest
from worker.engine.scheduler import Scheduler


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and cancellations in any order."""

    window: int | None = None
    num_blocks, max_seqs = NUM_BLOCKS, MAX_SEQS

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation(
            Scheduler(
                BlockPool(self.num_blocks),
                max_num_seqs=self.max_seqs,
                max_batched_tokens=BUDGET,
                enterprise_headroom=0.2,
                window=self.window,
            )
        )
        self.alive: set[str] = set()
        self.num_made = 0

    @rule(
        prompt_len=st.integers(1, MAX_LEN - 1),
        max_tokens=st.integers(1, MAX_LEN),
        priority=st.integers(0, 3),
        tenant=st.sampled_from("abc"),
        adapter=st.sampled_from((None, "x")),
        first_token=st.integers(0, 1),
    )
    def arrive(
        self, prompt_len: int, max_tokens: int, priority: int, tenant: str, adapter: str | None, first_token: int
    ) -> None:
        self.num_made += 1
        sequence = make_sequence(
            str(self.num_made),
            prompt_len=prompt_len,
            max_tokens=min(max_tokens, MAX_LEN - prompt_len),
            priority=priority,
            tenant=tenant,
            adapter=adapter,
            first_token=first_token,
        )
        self.simulation.scheduler.add(sequence)
        self.alive.add(str(self.num_made))

    @rule(count=st.integers(1, 20), max_prefill=st.sampled_from((None, 0, 16)))
    def step(self, count: int, max_prefill: int | None) -> None:
        for _ in range(count):
            self.simulation.step(max_prefill=max_prefill)
        self.alive -= set(self.simulation.finished)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.alive)))
        sequence = self.simulation.scheduler.get(request_id)
        assert sequence is not None
        self.simulation.scheduler.remove(sequence)
        self.alive.remove(request_id)

    @invariant()
    def every_block_is_free_cached_or_owned_once(self) -> None:
        self.simulation.scheduler.check()

    @invariant()
    def everything_alive_waits_or_runs(self) -> None:
        scheduler = self.simulation.scheduler
        assert scheduler.num_running + scheduler.num_waiting == len(self.alive)

    def teardown(self) -> None:
        self.simulation.run_dry()
        assert self.alive <= set(self.simulation.finished)
        assert self.simulation.scheduler.pool.num_free == self.num_blocks


class SlidingSchedulerMachine(SchedulerMachine):
    """For a model whose layers all look back on few tokens."""

    window = 23


class FloodedSchedulerMachine(SchedulerMachine):
    """With slots enough for a tenant to have far less of them than another: its short prompts get separate steps."""

    num_blocks, max_seqs = 80, 16

    @rule(max_tokens=st.integers(5, 40))
    def flood(self, max_tokens: int) -> None:
        for _ in range(12):
            self.arrive(20, max_tokens, 2, "a", None, 0)

    @rule(prompt_len=st.integers(1, 48))
    def come(self, prompt_len: int) -> None:
        self.arrive(prompt_len, 3, 2, "b", None, 1)
        self.step(1, 0)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
SlidingSchedulerMachine.TestCase.settings = SchedulerMachine.TestCase.settings
FloodedSchedulerMachine.TestCase.settings = SchedulerMachine.TestCase.settings
TestScheduler = SchedulerMachine.TestCase
TestSlidingScheduler = SlidingSchedulerMachine.TestCase
TestFloodedScheduler = FloodedSchedulerMachine.TestCase


def test_a_long_prompt_does_not_stall_those_that_decode() -> None:
    simulation = Simulation()
    simulation.scheduler.add(make_sequence("short", prompt_len=4, max_tokens=20))
    simulation.step()
    simulation.scheduler.add(make_sequence("long", prompt_len=120, max_tokens=1))
    for _ in range(3):
        by_id = {chunk.sequence.request.request_id: chunk.num_tokens for chunk in simulation.step()}
        assert by_id["short"] == 1
        assert 0 < by_id["long"] <= BUDGET - 1
    assert simulation.finished == ["long"]


def test_a_higher_class_is_admitted_first() -> None:
    simulation = Simulation()
    for priority in (3, 1, 2, 0):
        sequence = make_sequence(
            str(priority), prompt_len=BUDGET, max_tokens=1, priority=priority, first_token=1000 * priority
        )
        simulation.scheduler.add(sequence)
    simulation.run_dry()
    assert simulation.finished == ["0", "1", "2", "3"]


def test_when_blocks_run_out_the_lowest_class_gives_way_and_still_finishes() -> None:
    simulation = Simulation()
    for name, priority in (("low", 3), ("high", 0)):
        simulation.scheduler.add(make_sequence(name, prompt_len=24, max_tokens=100, priority=priority))
    simulation.scheduler.add(make_sequence("middle", prompt_len=24, max_tokens=100, priority=1))
    simulation.run_dry()
    assert simulation.scheduler.num_preemptions > 0
    assert simulation.finished == ["high", "middle", "low"]


def test_a_higher_class_takes_the_slot_of_a_lower_one_that_runs() -> None:
    simulation = Simulation()
    for i in range(MAX_SEQS):
        simulation.scheduler.add(make_sequence(f"low {i}", prompt_len=4, priority=3))
    simulation.step()
    simulation.scheduler.add(make_sequence("high", prompt_len=4, max_tokens=2, priority=1))
    assert "high" in [chunk.sequence.request.request_id for chunk in simulation.step()]
    assert simulation.scheduler.num_preemptions == 1
    simulation.run_dry()
    assert simulation.finished[0] == "high" and len(simulation.finished) == MAX_SEQS + 1


def test_a_higher_class_takes_the_blocks_of_lower_ones_but_not_of_its_own() -> None:
    simulation = Simulation()
    for i, (name, priority) in enumerate((("own", 1), ("low", 2), ("next", 1))):
        # Different tokens: nothing to share.
        sequence = make_sequence(name, prompt_len=90, max_tokens=20, priority=priority, first_token=1000 * i)
        simulation.scheduler.add(sequence)
        for _ in range(2):
            simulation.step()
    simulation.run_dry()
    assert simulation.finished == ["own", "next", "low"]


def test_nobody_is_preempted_for_a_request_that_would_not_fit_even_so() -> None:
    simulation = Simulation()
    for i, (name, priority) in enumerate((("own", 1), ("low", 2), ("huge", 1))):
        prompt_len = 120 if name == "huge" else 90
        simulation.scheduler.add(
            make_sequence(name, prompt_len=prompt_len, max_tokens=10, priority=priority, first_token=1000 * i)
        )
        for _ in range(2 if i < 2 else 1):
            simulation.step()
    assert simulation.scheduler.num_preemptions == 0


def test_deadlines_of_ended_requests_are_not_kept() -> None:
    simulation = Simulation()
    for i in range(5000):
        simulation.scheduler.add(make_sequence(str(i), prompt_len=1, max_tokens=1, deadline_at=1e9))
        simulation.step()
    assert len(simulation.scheduler._deadlines) < 2000


def test_a_prompt_seen_before_is_taken_from_the_cache() -> None:
    simulation = Simulation()
    simulation.scheduler.add(make_sequence("first", prompt_len=50, max_tokens=1))
    simulation.run_dry()
    again, other = make_sequence("again", prompt_len=50), make_sequence("other", prompt_len=50, tenant="t")
    simulation.scheduler.add(again)
    simulation.scheduler.add(other)
    simulation.step()
    assert (again.num_cached, other.num_cached) == (48, 0)


def test_of_a_wholly_cached_prompt_one_token_is_still_computed() -> None:
    simulation = Simulation()
    simulation.scheduler.add(make_sequence("first", prompt_len=48, max_tokens=1))
    simulation.run_dry()
    again = make_sequence("again", prompt_len=48)
    simulation.scheduler.add(again)
    assert [chunk.num_tokens for chunk in simulation.step()] == [16]


def test_an_expired_deadline_is_told_once() -> None:
    scheduler = Simulation().scheduler
    scheduler.add(make_sequence("a", deadline_at=5.0))
    assert scheduler.expired(4.9) == []
    assert [sequence.request.request_id for sequence in scheduler.expired(5.0)] == ["a"]
    assert scheduler.expired(6.0) == []


def test_a_tenant_that_was_idle_earned_no_credit() -> None:
    simulation = Simulation()
    for i in range(30):
        simulation.scheduler.add(make_sequence(f"a{i}", tenant="a"))
    for _ in range(20):
        simulation.step()
    for i in range(30):
        simulation.scheduler.add(make_sequence(f"b{i}", tenant="b"))
    before = len(simulation.finished)
    while len(simulation.finished) < before + 20:
        simulation.step()
    assert any(request_id.startswith("a") for request_id in simulation.finished[before + MAX_SEQS :])


def test_the_victim_is_the_one_with_the_least_work_to_lose() -> None:
    simulation = Simulation()
    for i, prompt_len in enumerate((40, 20, 30, 4, 9)):
        sequence = make_sequence(str(prompt_len), prompt_len=prompt_len, priority=3, first_token=1000 * i)
        simulation.scheduler.add(sequence)
    for _ in range(4):
        simulation.step()
    newcomer = make_sequence("high", prompt_len=4, priority=1)
    simulation.scheduler.add(newcomer)
    simulation.step()
    assert newcomer.is_running
    assert [each.request.request_id for each in simulation.scheduler.live() if not each.is_running] == ["4"]


def test_in_a_class_a_tenant_that_holds_all_slots_gives_some_to_another_once() -> None:
    simulation = Simulation()
    for i in range(20):
        simulation.scheduler.add(make_sequence(f"a{i}", prompt_len=2, max_tokens=100, tenant="a", first_token=100 * i))
    simulation.step()
    for i in range(4):
        simulation.scheduler.add(make_sequence(f"b{i}", prompt_len=2, max_tokens=100, tenant="b"))
    for _ in range(20):
        simulation.step()
        running = [each.request.tenant for each in simulation.scheduler.live() if each.is_running]
    # Of five slots the flood keeps three: an even number could not be reached without a tenant's falling behind.
    assert (running.count("a"), running.count("b")) == (3, 2)
    assert simulation.scheduler.num_preemptions == 2


def test_what_enterprise_may_need_is_kept_free_of_lower_classes() -> None:
    pool = BlockPool(20)
    simulation = Simulation(Scheduler(pool, max_num_seqs=10, max_batched_tokens=BUDGET, enterprise_headroom=0.2))
    for i in range(10):
        simulation.scheduler.add(make_sequence(f"low {i}", prompt_len=4, max_tokens=4, priority=1))
    simulation.step()
    assert simulation.scheduler.num_running == 8
    for i in range(2):
        simulation.scheduler.add(make_sequence(f"high {i}", prompt_len=4, max_tokens=4, priority=0))
    simulation.step()
    assert (simulation.scheduler.num_running, simulation.scheduler.num_preemptions) == (10, 0)


def test_alone_a_request_of_a_lower_class_may_use_all_blocks() -> None:
    simulation = Simulation(Scheduler(BlockPool(8), max_num_seqs=4, max_batched_tokens=BUDGET, enterprise_headroom=0.5))
    simulation.scheduler.add(make_sequence("whole window", prompt_len=120, max_tokens=8, priority=3))
    simulation.run_dry()
    assert simulation.finished == ["whole window"]


def test_blocks_are_tight_when_growth_needs_more_than_are_left() -> None:
    simulation = Simulation(Scheduler(BlockPool(100), max_num_seqs=5, max_batched_tokens=2000))
    simulation.scheduler.add(make_sequence("ends soon", prompt_len=1400, max_tokens=3))
    simulation.step()
    simulation.scheduler.add(make_sequence("grows", prompt_len=120, max_tokens=8, tenant="t"))
    simulation.step()
    assert (simulation.scheduler.pool.num_free, simulation.scheduler.is_kv_tight) == (4, False)
    simulation.run_dry()
    simulation.scheduler.add(make_sequence("grows much", prompt_len=1530, max_tokens=300))
    simulation.step()
    assert (simulation.scheduler.pool.num_free, simulation.scheduler.is_kv_tight) == (4, True)


def test_in_the_midst_of_a_step_all_that_run_are_still_counted() -> None:
    simulation = Simulation()
    counted: list[int] = []

    class Watchful(EngineRequest):
        def __getattribute__(self, name: str) -> object:
            if name == "priority":
                # As another thread may: sequences are put in order by it.
                counted.append(simulation.scheduler.num_running)
            return super().__getattribute__(name)

    for name in "ab":
        sequence = make_sequence(name)
        sequence.request = Watchful(**asdict(sequence.request) | {"sampling": sequence.request.sampling})
        simulation.scheduler.add(sequence)
    simulation.step()
    counted.clear()
    simulation.step()
    assert set(counted) == {2}


def test_blocks_that_no_layer_looks_back_on_are_given_up_and_still_found() -> None:
    pool = BlockPool(NUM_BLOCKS)
    simulation = Simulation(Scheduler(pool, max_num_seqs=MAX_SEQS, max_batched_tokens=BUDGET, window=40))
    sequence = make_sequence("a", prompt_len=60, max_tokens=60)
    simulation.scheduler.add(sequence)
    for _ in range(60):
        simulation.step()
        # The token to come sees itself and 39 before it.
        num_hidden = max(sequence.num_computed - 39, 0) // 16
        assert NUM_BLOCKS - pool.num_free == len(sequence.block_ids) - num_hidden
    assert simulation.run_dry() < 5
    simulation.scheduler.add(make_sequence("b", prompt_len=60, max_tokens=1))
    assert sum(chunk.num_tokens for chunk in simulation.step()) == 60 - 48
