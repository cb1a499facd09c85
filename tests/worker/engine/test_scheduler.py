"""The scheduler driven by hypothesis, with counting in place of a model."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.engine.blocks import BlockPool
from worker.engine.prefix_cache import root_digest
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Chunk, Sequence

MAX_LEN, NUM_BLOCKS, MAX_SEQS, BUDGET = 128, 14, 5, 48


def make_sequence(
    request_id: str,
    *,
    prompt_len: int = 20,
    max_tokens: int = 10,
    priority: int = 2,
    tenant: str = "",
    weight: float = 1.0,
    deadline_at: float | None = None,
    first_token: int = 0,
) -> Sequence:
    request = EngineRequest(
        request_id=request_id,
        prompt_ids=list(range(first_token, first_token + prompt_len)),
        sampling=SamplingParams(max_tokens=max_tokens),
        priority=priority,
        tenant=tenant,
        weight=weight,
        deadline_at=deadline_at,
    )
    root = root_digest(salt=tenant, model_version="m", adapter_digest="")
    return Sequence(request, list(request.prompt_ids), prompt_len, root, 0.0)


@dataclass
class Simulation:
    """Runs a scheduler; every sequence's token is its position, so that recomputing gives the same content."""

    scheduler: Scheduler = field(
        default_factory=lambda: Scheduler(BlockPool(NUM_BLOCKS), max_num_seqs=MAX_SEQS, max_batched_tokens=BUDGET)
    )
    finished: list[str] = field(default_factory=list)

    def step(self) -> list[Chunk]:
        chunks = self.scheduler.schedule(now=0.0)
        check_chunks(chunks)
        done = [chunk.sequence for chunk in chunks if chunk.is_last]
        self.scheduler.advance(chunks)
        for sequence in done:
            sequence.token_ids.append(len(sequence.token_ids))
            if sequence.num_output == sequence.request.sampling.max_tokens:
                self.scheduler.remove(sequence)
                self.finished.append(sequence.request.request_id)
        self.scheduler.check()
        return chunks

    def run_dry(self, max_steps: int = 3000) -> int:
        """Step until nothing is left; how many steps it took."""
        for i in range(max_steps):
            if not self.step():
                return i
        raise AssertionError("the scheduler never finishes")


def check_chunks(chunks: list[Chunk]) -> None:
    assert sum(chunk.num_tokens for chunk in chunks) <= BUDGET
    assert len(chunks) <= MAX_SEQS
    assert len({chunk.sequence.request.request_id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        end = chunk.sequence.num_computed + chunk.num_tokens
        assert 0 < chunk.num_tokens <= chunk.sequence.num_uncomputed
        assert len(chunk.sequence.block_ids) * 16 >= end


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and cancellations in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation()
        self.alive: set[str] = set()
        self.num_made = 0

    @rule(
        prompt_len=st.integers(1, MAX_LEN - 1),
        max_tokens=st.integers(1, MAX_LEN),
        priority=st.integers(0, 3),
        tenant=st.sampled_from("abc"),
        first_token=st.integers(0, 1),
    )
    def arrive(self, prompt_len: int, max_tokens: int, priority: int, tenant: str, first_token: int) -> None:
        self.num_made += 1
        sequence = make_sequence(
            str(self.num_made),
            prompt_len=prompt_len,
            max_tokens=min(max_tokens, MAX_LEN - prompt_len),
            priority=priority,
            tenant=tenant,
            first_token=first_token,
        )
        self.simulation.scheduler.add(sequence)
        self.alive.add(str(self.num_made))

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()
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
        assert self.simulation.scheduler.pool.num_free == NUM_BLOCKS


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase


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
        simulation.scheduler.add(make_sequence(str(priority), prompt_len=30, max_tokens=1, priority=priority))
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


@given(st.floats(0.5, 4.0), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_two_backlogged_tenants_are_served_by_weight(weight: float, prompt_len: int) -> None:
    simulation = Simulation()
    served = {"a": 0.0, "b": 0.0}
    for i in range(60):
        simulation.scheduler.add(make_sequence(f"a{i}", prompt_len=prompt_len, tenant="a", weight=weight))
        simulation.scheduler.add(make_sequence(f"b{i}", prompt_len=prompt_len, tenant="b"))
    # What a tenant may be ahead: everything that can run at once, at an output token's cost, for the lighter one.
    bound = 2 * MAX_SEQS * (prompt_len + 10) * 2 / min(weight, 1.0)
    for _ in range(40):
        for chunk in simulation.step():
            request = chunk.sequence.request
            is_output = chunk.sequence.num_computed > chunk.sequence.num_prompt
            served[request.tenant] += chunk.num_tokens * (2 if is_output else 1) / request.weight
        assert abs(served["a"] - served["b"]) <= bound


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
