"""Rows of the GPU's tables, and the two buffers that results arrive in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.request import EngineRequest
from worker.engine.request_slots import RequestSlots
from worker.engine.result_buffer import ResultBuffer
from worker.engine.sequence import Sequence

NUM_SLOTS = 3


def _sequence(name: str) -> Sequence:
    return Sequence(name, EngineRequest(request_id=name, prompt_ids=[1]), [1], 1, b"", 0.0)


@given(moves=st.lists(st.tuples(st.sampled_from(["run", "stop", "resume"]), st.integers(0, 7)), max_size=60))
def test_what_runs_has_a_row_of_its_own_and_its_own_content(moves: list[tuple[str, int]]) -> None:
    """Sequences begin, are preempted and come back, at most as many at a time as there are rows."""
    slots, everyone = RequestSlots(NUM_SLOTS), [_sequence(str(i)) for i in range(8)]
    content: dict[int, Sequence] = {}
    for move, i in moves:
        sequence = everyone[i]
        if move == "stop":
            sequence.block_ids = []
            continue
        if not sequence.is_running and sum(each.is_running for each in everyone) == NUM_SLOTS:
            continue
        sequence.block_ids = [0]
        slot, is_ready = slots.take(sequence)
        assert 0 <= slot < NUM_SLOTS and slots.of(sequence) == slot
        assert not is_ready or content[slot] is sequence
        content[slot] = sequence
        slots.confirm([sequence])
        running = [each for each in everyone if each.is_running]
        assert len({slots.of(each) for each in running}) == len(running)


def test_a_row_is_filled_again_after_a_launch_that_failed() -> None:
    slots, sequence = RequestSlots(1), _sequence("a")
    assert slots.take(sequence) == (0, False)
    assert slots.take(sequence) == (0, False)
    slots.confirm([sequence])
    assert slots.take(sequence) == (0, True)
    slots.doubt([sequence])
    assert slots.take(sequence) == (0, False)


def test_a_result_stays_until_it_is_read() -> None:
    results = ResultBuffer(4, torch.device("cpu"))
    first = results.fetch(torch.tensor([1, 2, 3], dtype=torch.int32))
    second = results.fetch(torch.tensor([4], dtype=torch.int32))
    assert first.read().tolist() == [1, 2, 3]
    third = results.fetch(torch.tensor([5, 6], dtype=torch.int32))
    assert (second.read().tolist(), third.read().tolist()) == ([4], [5, 6])
    results.fetch(torch.tensor([7], dtype=torch.int32))
    results.fetch(torch.tensor([8], dtype=torch.int32))
    with pytest.raises(AssertionError, match="third step"):
        results.fetch(torch.tensor([9], dtype=torch.int32))
