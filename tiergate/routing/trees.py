"""Boosted oblivious trees: all nodes of a level make one comparison, so a forest is evaluated in five numpy calls."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    depth: int = 5
    num_trees: int = 120
    learning_rate: float = 0.06
    shrinkage: float = 60.0
    """Pseudo-rows without gain added to every leaf, which shrink its gain."""
    num_bins: int = 24
    column_share: float = 0.35
    row_share: float = 0.7
    seed: int = 0


@dataclass(frozen=True)
class Forest:
    """features, cuts [depth, trees]; gains [trees, 2**depth], where the first level is the lowest bit."""

    features: NDArray[np.int16]
    cuts: NDArray[np.float32]
    gains: NDArray[np.float32]

    def predict(self, table: NDArray[np.float32]) -> Floats:
        total = np.zeros(len(table))
        for tree in range(self.features.shape[1]):
            leaves = np.zeros(len(table), dtype=np.intp)
            for level, (feature, cut) in enumerate(zip(self.features[:, tree], self.cuts[:, tree], strict=True)):
                leaves |= (table[:, feature] > cut).astype(np.intp) << level
            total += self.gains[tree][leaves]
        return total


def grow(
    table: NDArray[np.float32], targets: Floats, weights: Floats, plan: Plan, unseen: Collection[int] = ()
) -> Forest:
    """Minimize the squared loss. Each tree sees a random part of the columns and rows, but not the columns `unseen`."""
    rng = np.random.default_rng(plan.seed)
    cuts = [_cuts(table[:, column], plan.num_bins) for column in range(table.shape[1])]
    bins = np.stack([np.searchsorted(cut, table[:, column]) for column, cut in enumerate(cuts)])
    columns = np.array([column for column, cut in enumerate(cuts) if len(cut) and column not in unseen])
    left = targets.copy()
    features, chosen_cuts, gains = [], [], []
    for _ in range(plan.num_trees):
        tried = rng.choice(columns, max(1, round(len(columns) * plan.column_share)), replace=False)
        rows = np.flatnonzero(rng.random(len(table)) < plan.row_share)
        asked = _grow_one(bins, cuts, tried, rows, left * weights, weights, plan)
        leaves = np.zeros(len(table), dtype=np.intp)
        for level, (column, place) in enumerate(asked):
            leaves |= (bins[column] > place).astype(np.intp) << level
        size = 2**plan.depth
        sums = np.bincount(leaves[rows], (left * weights)[rows], size)
        gain = plan.learning_rate * sums / (np.bincount(leaves[rows], weights[rows], size) + plan.shrinkage)
        left -= gain[leaves]
        features.append([column for column, _ in asked])
        chosen_cuts.append([cuts[column][place] for column, place in asked])
        gains.append(gain)
    return Forest(
        np.array(features, np.int16).T.copy(), np.array(chosen_cuts, np.float32).T.copy(), np.array(gains, np.float32)
    )


def _cuts(values: NDArray[np.float32], num_bins: int) -> NDArray[np.float32]:
    """Half of the cuts divide the rows evenly, half the distinct values, so that rare values are separated too."""
    places = np.linspace(0, 1, num_bins // 2 + 1)[1:-1]
    parted = [np.quantile(each, places) for each in (values, np.unique(values))]
    cuts = np.unique(np.concatenate(parted).astype(np.float32))
    below: NDArray[np.float32] = cuts[cuts < values.max()]
    return below


def _grow_one(
    bins: NDArray[np.intp],
    cuts: list[NDArray[np.float32]],
    tried: NDArray[np.intp],
    rows: NDArray[np.intp],
    pulls: Floats,
    weights: Floats,
    plan: Plan,
) -> list[tuple[int, int]]:
    """The column and the index of the cut of each level."""
    bins, pulls, weights = bins[:, rows], pulls[rows], weights[rows]
    leaves, asked = np.zeros(len(rows), dtype=np.intp), []
    for level in range(plan.depth):
        best = (-np.inf, 0, 0)
        for column in tried.tolist():
            worth = _worth(leaves * plan.num_bins + bins[column], 2**level, pulls, weights, plan)[: len(cuts[column])]
            place = int(np.argmax(worth))
            best = max(best, (float(worth[place]), column, place))
        _, column, place = best
        asked.append((column, place))
        leaves |= (bins[column] > place).astype(np.intp) << level
    return asked


def _worth(cells: NDArray[np.intp], num_leaves: int, pulls: Floats, weights: Floats, plan: Plan) -> Floats:
    """[bins - 1]: how much the squared loss falls when all leaves are cut after that bin."""
    shape = (num_leaves, plan.num_bins)
    sums = np.bincount(cells, pulls, num_leaves * plan.num_bins).reshape(shape).cumsum(axis=1)
    sizes = np.bincount(cells, weights, num_leaves * plan.num_bins).reshape(shape).cumsum(axis=1)
    below, num_below = sums[:, :-1], sizes[:, :-1]
    above, num_above = sums[:, -1:] - below, sizes[:, -1:] - num_below
    worth: Floats = below**2 / (num_below + plan.shrinkage) + above**2 / (num_above + plan.shrinkage)
    return np.asarray(worth.sum(axis=0))
