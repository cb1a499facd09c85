"""Who comes beside another tenant's flood, and whose prompts keep to the pace."""

from tests.support.simulation import Simulation, make_sequence
from worker.engine.blocks import BlockPool
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Chunk


def flooded(*, num_served_to_b: int = 0) -> Simulation:
    """Tenant `a` decodes in all slots but one that was just left, and more of its requests wait."""
    scheduler = Scheduler(BlockPool(600), max_num_seqs=16, max_batched_tokens=512)
    simulation = Simulation(scheduler)
    if num_served_to_b:
        scheduler.add(make_sequence("before", tenant="b", prompt_len=num_served_to_b, max_tokens=1))
        simulation.run_dry()
    for i in range(40):
        scheduler.add(make_sequence(f"a{i}", tenant="a", prompt_len=100, max_tokens=30, first_token=1000 * i))
    for _ in range(25):
        simulation.step(max_prefill=24)
    return simulation


def ids(chunks: list[Chunk]) -> set[str]:
    return {chunk.sequence.request.request_id for chunk in chunks}


def test_a_tenant_that_comes_anew_has_its_short_prompt_computed_in_a_step_of_its_own() -> None:
    simulation = flooded()
    for i in range(2):
        simulation.scheduler.add(
            make_sequence(f"b{i}", tenant="b", prompt_len=64, max_tokens=1, first_token=90_000 + 1000 * i)
        )
    assert ids(simulation.step(max_prefill=24)) == {"b0"}
    assert simulation.finished[-1] == "b0"
    # Those that decode do not wait for the second as well.
    simulation.step(max_prefill=24)
    assert not simulation.had_decodes_wait


def num_prefilled(chunks: list[Chunk]) -> int:
    return sum(chunk.num_tokens for chunk in chunks if chunk.num_tokens > 1)


def test_prompts_keep_to_the_pace_where_more_of_their_class_wait_and_short_ones_are_finished_where_none_do() -> None:
    simulation = flooded()
    scheduler = simulation.scheduler
    for _ in range(20):
        assert num_prefilled(simulation.step(max_prefill=24)) <= 24
    scheduler.add(make_sequence("e", tenant="a", prompt_len=64, max_tokens=1, priority=1, first_token=90_000))
    simulation.step(max_prefill=24)
    assert simulation.finished[-1] == "e"
    while scheduler.num_waiting:
        simulation.step(max_prefill=24)
    while scheduler.num_running > 8:
        simulation.step(max_prefill=24)
    scheduler.add(make_sequence("n", tenant="a", prompt_len=64, max_tokens=1, first_token=91_000))
    assert num_prefilled(simulation.step(max_prefill=24)) >= 64


def test_no_step_is_spent_on_who_has_a_fair_share_already_or_was_served_more_or_is_of_a_worse_class() -> None:
    for tenant, priority, num_served in (("a", 2, 0), ("b", 2, 8000), ("b", 3, 0)):
        simulation = flooded(num_served_to_b=num_served)
        simulation.scheduler.add(
            make_sequence("n", tenant=tenant, prompt_len=64, priority=priority, first_token=90_000)
        )
        for _ in range(40):
            simulation.step(max_prefill=24)
            assert not simulation.had_decodes_wait


def test_tenants_with_a_few_requests_each_share_their_steps() -> None:
    scheduler = Scheduler(BlockPool(400), max_num_seqs=16, max_batched_tokens=512)
    simulation = Simulation(scheduler)
    for i in range(12):
        scheduler.add(make_sequence(str(i), tenant=str(i // 2), prompt_len=64, max_tokens=30, first_token=1000 * i))
        simulation.step(max_prefill=24)
        assert not simulation.had_decodes_wait
