import numpy as np
import pytest

from tiergate.routing.folds import make_folds
from tiergate.routing.quality import apgr, calibration_error, cpt, interval
from tiergate.routing.trees import Plan, grow

GAINS = np.array([1.0] * 20 + [0.0] * 80)


def test_the_best_order_recovers_all_with_a_fifth_of_the_calls() -> None:
    best = np.arange(100)[::-1].astype(float)
    assert cpt(best, GAINS, 1.0) == 0.2
    assert apgr(best, GAINS) == pytest.approx((0 + 0.5 + 9) / 11)
    assert apgr(-best, GAINS) == pytest.approx(1 - apgr(best, GAINS))


def test_random_order_has_one_half() -> None:
    rng = np.random.default_rng(0)
    assert np.mean([apgr(rng.random(100), GAINS) for _ in range(400)]) == pytest.approx(0.5, abs=0.02)


def test_an_interval_holds_the_mean() -> None:
    low, high = interval(lambda rows: float(GAINS[rows].mean()), 100)
    assert low < 0.2 < high and high - low == pytest.approx(0.157, abs=0.04)


def test_scores_that_say_what_happens_have_no_calibration_error() -> None:
    assert calibration_error(np.full(100, 0.2), GAINS) == pytest.approx(0)
    assert calibration_error(np.full(100, 0.5), GAINS) == pytest.approx(0.3)


def test_subjects_are_held_out_whole_and_other_sources_by_rows() -> None:
    sources = np.array(["big"] * 500 + [f"small/{number}" for number in range(50) for _ in range(10)])
    folds = make_folds(sources, 5)
    assert set(folds[:500].tolist()) == set(range(5))
    assert all(len(set(folds[sources == name].tolist())) == 1 for name in set(sources.tolist()) - {"big"})


def test_trees_learn_what_two_columns_say_together() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((2000, 4)).astype(np.float32)
    targets = ((table[:, 0] > 0.5) & (table[:, 1] > 0.5)).astype(float)
    forest = grow(table, targets, np.ones(2000), Plan(depth=3, num_trees=100, learning_rate=0.1, column_share=1.0))
    assert np.corrcoef(forest.predict(table), targets)[0, 1] > 0.95
