"""The quality of a score: the accuracy it recovers by the share of large calls, with confidence intervals.

PGR(share) = (accuracy of the router - accuracy of the small model) / (large - small), at that share of large calls
APGR       = its mean over shares of 0 %, 10 %, ... 100 %; random routing has 0.5
CPT(x)     = the smallest share at which PGR reaches x; random routing has x
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SHARES = np.linspace(0.0, 1.0, 11)


def recovered(scores: Floats, gains: Floats) -> Floats:
    """[rows + 1]: PGR when the 0, 1, 2, ... highest scores go large. Among equal scores the earlier row goes first."""
    order = np.argsort(-scores, kind="stable")
    total = gains.sum()
    return np.concatenate(([0.0], np.cumsum(gains[order]))) / (total if total else np.nan)


def recovered_at(scores: Floats, gains: Floats, shares: Floats) -> Floats:
    return np.interp(shares * len(gains), np.arange(len(gains) + 1), recovered(scores, gains))


def apgr(scores: Floats, gains: Floats) -> float:
    return float(recovered_at(scores, gains, SHARES).mean())


def cpt(scores: Floats, gains: Floats, wanted: float) -> float:
    curve = recovered(scores, gains)
    return float(np.argmax(curve >= wanted) / len(gains)) if (curve >= wanted).any() else 1.0


def interval(
    measure: Callable[[NDArray[np.intp]], float], num_rows: int, *, num_draws: int = 500, seed: int = 0
) -> tuple[float, float]:
    """The middle 95 % of the measure over bootstrap samples of the rows."""
    rng = np.random.default_rng(seed)
    found = [measure(rng.integers(0, num_rows, num_rows)) for _ in range(num_draws)]
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def calibration_error(probabilities: Floats, labels: Floats, *, num_bins: int = 10) -> float:
    """Expected calibration error over bins of equal width."""
    bins = np.minimum((probabilities * num_bins).astype(int), num_bins - 1)
    errors = [abs(probabilities[bins == each].sum() - labels[bins == each].sum()) for each in range(num_bins)]
    return float(sum(errors) / len(labels))
