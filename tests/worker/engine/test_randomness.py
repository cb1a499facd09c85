"""Numbers from a seed and a position."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.randomness import choice_seed, uniform


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_numbers_are_in_range_and_repeat(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_positions_and_seeds_are_spread_evenly_and_independently() -> None:
    tenths = [0] * 10
    pairs = [0] * 4
    for seed in range(50):
        for position in range(200):
            x = uniform(seed, position)
            tenths[int(10 * x)] += 1
            pairs[2 * (x < 0.5) + (uniform(seed, position + 1) < 0.5)] += 1
    assert all(900 < count < 1100 for count in tenths)
    assert all(2300 < count < 2700 for count in pairs)


def test_choices_of_one_seed_and_of_neighbouring_seeds_draw_apart() -> None:
    assert choice_seed(7, 0) == 7
    drawn = {uniform(choice_seed(seed, i), position) for seed in range(40) for i in range(16) for position in range(20)}
    assert len(drawn) == 40 * 16 * 20
