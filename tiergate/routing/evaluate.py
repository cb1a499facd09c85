"""The quality of weights on graded prompts, and the thresholds that follow from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.complexity import complexity_of
from router.weights import Weights
from tiergate.failure import Failure
from tiergate.routing.graded import Graded
from tiergate.routing.quality import apgr, calibration_error, cpt, interval


def score_rows(graded: Graded, weights: Weights) -> NDArray[np.float64]:
    """The score of each row; 1 for prompts whose structure alone sends them to the large model."""
    found = [complexity_of(prompt, weights) for prompt in graded.prompts()]
    return np.array([1.0 if each.needs_large else each.score for each in found])


def qualities(graded: Graded, scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """A row for each group of sources (the part before the slash), and one for all of them."""
    groups = np.array([source.partition("/")[0] for source in graded.sources.tolist()])
    names = sorted(set(groups.tolist()))
    rows = [_quality(name or "(no source)", scores[groups == name], graded.where(groups == name)) for name in names]
    return rows if len(rows) == 1 else [*rows, _quality("all", scores, graded)]


def _quality(name: str, scores: NDArray[np.float64], graded: Graded) -> dict[str, Any]:
    gains = graded.gains
    row: dict[str, Any] = {
        "source": name,
        "prompts": len(gains),
        "weak": round(float(graded.weak.mean()), 3),
        "strong": round(float(graded.strong.mean()), 3),
        "ece": round(calibration_error(scores, graded.labels), 3),
    }
    if gains.sum() <= 0:
        return row | {"apgr": None, "apgr_95": None, "cpt50": None, "cpt80": None}
    low, high = interval(lambda drawn: apgr(scores[drawn], gains[drawn]), len(gains))
    return row | {
        "apgr": round(apgr(scores, gains), 3),
        "apgr_95": [round(low, 3), round(high, 3)],
        "cpt50": round(cpt(scores, gains, 0.5), 3),
        "cpt80": round(cpt(scores, gains, 0.8), 3),
    }


def threshold_at(graded: Graded, weights: Weights, large_share: float) -> dict[str, Any]:
    """The lowest threshold that sends at most this share to the large model, and what that recovers on these rows."""
    scores = score_rows(graded, weights)
    num_forced = int((scores == 1.0).sum())
    if num_forced > large_share * len(scores):
        raise Failure(
            f"{num_forced} of {len(scores)} prompts use tools or a schema and go to the large model in any case: "
            f"a share of {large_share:g} cannot be held"
        )
    order = np.sort(scores)[::-1]
    # Just above the first score that must stay with the small model.
    place = int(large_share * len(order))
    threshold = 0.0 if place >= len(order) else float(np.nextafter(order[place], 1.0))
    is_large = scores >= threshold
    gain = graded.gains.sum()
    return {
        "threshold": min(1.0, threshold),
        "large_share": float(is_large.mean()),
        "recovered": float(graded.gains[is_large].sum() / gain) if gain > 0 else None,
        "accuracy": float(np.where(is_large, graded.strong, graded.weak).mean()),
    }


def share_for(cost: float, *, small_cost: float, large_cost: float) -> float:
    """The share of large calls at which requests cost `cost`. All three costs are for the same number of requests."""
    if not small_cost < large_cost < float("inf"):
        raise Failure(f"the large model must cost more than the small one, got {large_cost:g} and {small_cost:g}")
    if not cost >= small_cost:
        raise Failure(f"a cost of {cost:g} cannot be held: the small model alone costs {small_cost:g}")
    return min(1.0, (cost - small_cost) / (large_cost - small_cost))


def cost_at(large_share: float, *, small_cost: float, large_cost: float) -> float:
    return small_cost + large_share * (large_cost - small_cost)
