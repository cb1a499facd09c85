"""Trains weights on graded prompts: a linear model of the words, a line of the length, and trees over all features.

The target is the gain (1: only the large model is right, -1: only the small one, 0: no difference). Ranking by the
gain recovers the most accuracy. The calibration then gives, for each rank, how often the large model is right and the
small one is wrong.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import Ridge

from router.complexity import floor_of
from router.features import LINEAR, NAMES, PLACE, Reading, read
from router.weights import Content, Weights
from router.words import HASH_BITS
from tiergate.routing.folds import make_folds
from tiergate.routing.graded import Graded, check_both_classes
from tiergate.routing.trees import Plan, grow

Floats = NDArray[np.float64]
LENGTH_SLOPE, OPEN_LENGTH_SLOPE, RULES_SLOPE = 0.05, 0.08, 0.22
"""Slopes set by hand, not learnt: the gain for each e-fold of a prompt's length, the additional gain for it if the
prompt offers no options, and the gain for rules in the system message that restrict the answer."""
WORD_SHRINKAGE = 100.0
NUM_FOLDS = 5
NUM_BINS = 20
_UNSEEN = frozenset(PLACE[name] for name in LINEAR)
_RISE = 0.01
"""Added along the calibration curve, from -0.01 to 0.01, so that its level parts keep the ranking."""


@dataclass(frozen=True)
class Trained:
    """scores: each row's score, by weights that were trained without its fold, calibrated on all rows."""

    content: Content
    scores: Floats


def train(graded: Graded, *, note: str, plan: Plan | None = None) -> Trained:
    """Raises Failure if there is nothing to learn; see `check_both_classes`."""
    check_both_classes(graded)
    plan = plan or Plan()
    prompts = graded.prompts()
    readings = [read(prompt) for prompt in prompts]
    raw = _held_out_raw(graded, readings, plan)
    knots, probabilities = calibration(raw, graded)
    floors = np.array([floor_of(*each) for each in zip(prompts, readings, strict=True)])
    scores = np.maximum(np.interp(raw, knots, probabilities), floors)
    content = msgspec.structs.replace(
        fit(graded, readings, plan, note),
        raw_knots=tuple(knots.tolist()),
        probabilities=tuple(probabilities.tolist()),
        quantiles=tuple(_quantiles(scores, graded.weights).tolist()),
    )
    return Trained(content, scores)


def _held_out_raw(graded: Graded, readings: list[Reading], plan: Plan) -> Floats:
    folds = make_folds(graded.sources, NUM_FOLDS)
    raw = np.zeros(len(readings))
    for fold in range(NUM_FOLDS):
        inside = folds != fold
        content = fit(graded.where(inside), [r for r, is_in in zip(readings, inside, strict=True) if is_in], plan, "")
        weights = Weights(content)
        raw[~inside] = [weights.raw_score(r) for r, is_in in zip(readings, inside, strict=True) if not is_in]
    return raw


def fit(graded: Graded, readings: list[Reading], plan: Plan, note: str) -> Content:
    """Weights without calibration. readings: one for each row, in order."""
    table = np.stack([reading.features for reading in readings])
    gains, weights = graded.gains, graded.weights
    words = _word_table(readings)
    table[:, PLACE["word_gain"]] = _held_out_word_gains(words, graded)
    linear, intercept = _line(table, gains, weights)
    forest = grow(table, gains - intercept - table @ linear, weights, plan, _UNSEEN)
    word_gains = _fit_words(words, gains, weights).astype("<f2")
    return Content(
        note=note,
        feature_names=NAMES,
        word_gains=word_gains.tobytes(),
        linear=linear.astype("<f4").tobytes(),
        intercept=float(intercept),
        tree_features=forest.features.astype("<i2").tobytes(),
        tree_cuts=forest.cuts.astype("<f4").tobytes(),
        tree_gains=forest.gains.astype("<f4").tobytes(),
        depth=plan.depth,
        raw_knots=(0.0,),
        probabilities=(0.0,),
        quantiles=(0.0,) * 101,
    )


def _line(table: NDArray[np.float32], gains: Floats, weights: Floats) -> tuple[Floats, float]:
    """The slopes set by hand, and a fitted level for prompts with and without options."""
    linear = np.zeros(len(NAMES))
    linear[PLACE["log_chars"]], linear[PLACE["open_log_chars"]] = LENGTH_SLOPE, OPEN_LENGTH_SLOPE
    linear[PLACE["rule_constraints"]] = RULES_SLOPE
    left = gains - table @ linear
    has_options = (table[:, PLACE["options"]] > 0).astype(np.float64)
    sides = np.stack([has_options, np.ones(len(table))], axis=1) * np.sqrt(weights)[:, None]
    with_options, level = np.linalg.lstsq(sides, left * np.sqrt(weights), rcond=None)[0]
    mean_options = np.average(table[:, PLACE["options"]], weights=weights * has_options) if has_options.any() else 1.0
    linear[PLACE["options"]] = with_options / mean_options
    return linear, float(level)


def _word_table(readings: list[Reading]) -> csr_matrix:
    """[rows, hashes]: each word of a prompt counts 1 / sqrt(number of its words)."""
    hashes = [reading.words.hashes for reading in readings]
    sizes = np.array([len(each) for each in hashes])
    values = np.repeat(1.0 / np.sqrt(np.maximum(1, sizes)), sizes)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    return csr_matrix((values, np.concatenate(hashes), starts), shape=(len(readings), 2**HASH_BITS))


def _fit_words(words: csr_matrix, gains: Floats, weights: Floats) -> Floats:
    mean = np.average(gains, weights=weights)
    fitted = Ridge(WORD_SHRINKAGE, fit_intercept=False, solver="sparse_cg").fit(
        words, gains - mean, sample_weight=weights
    )
    return np.asarray(fitted.coef_)


def _held_out_word_gains(words: csr_matrix, graded: Graded) -> Floats:
    folds = make_folds(graded.sources, NUM_FOLDS, seed=1)
    found = np.zeros(len(graded.rows))
    for fold in range(NUM_FOLDS):
        inside = folds != fold
        coefficients = _fit_words(words[inside], graded.gains[inside], graded.weights[inside])
        found[~inside] = words[~inside] @ coefficients
    return found


def calibration(raw: Floats, graded: Graded) -> tuple[Floats, Floats]:
    """Knots and the probability at each, from bins of equal weight, made monotonic."""
    order = np.argsort(raw)
    place = np.cumsum(graded.weights[order])
    bins = np.minimum((place / place[-1] * NUM_BINS).astype(int), NUM_BINS - 1)
    weights = graded.weights[order]
    size = np.bincount(bins, weights, NUM_BINS)
    used = size > 0
    knots = (np.bincount(bins, weights * raw[order], NUM_BINS)[used]) / size[used]
    shares = (np.bincount(bins, weights * graded.labels[order], NUM_BINS)[used]) / size[used]
    smooth = IsotonicRegression(y_min=0.0, y_max=1.0).fit(knots, shares, sample_weight=size[used]).predict(knots)
    rise = np.linspace(-_RISE, _RISE, len(knots))
    knots = np.concatenate(([min(raw.min(), knots[0]) - 1.0], knots, [max(raw.max(), knots[-1]) + 1.0]))
    probabilities = np.concatenate(([smooth[0] - 2 * _RISE], smooth + rise, [smooth[-1] + 0.3]))
    return knots, np.clip(probabilities, 0.0, 1.0)


def _quantiles(scores: Floats, weights: Floats) -> Floats:
    order = np.argsort(scores)
    place = np.cumsum(weights[order]) / weights.sum()
    return np.interp(
        np.linspace(0, 1, 101), np.concatenate(([0.0], place)), np.concatenate(([scores.min()], scores[order]))
    )
