"""Folds for cross-validation. Whole sources are held out, so that a score is judged on sources it never saw."""

import numpy as np
from numpy.typing import NDArray


def make_folds(sources: NDArray[np.str_], num_folds: int, *, seed: int = 0) -> NDArray[np.intp]:
    """The fold of each row, from 0. A source with a slash (`benchmark/subject`) is held out whole, others by rows."""
    rng = np.random.default_rng(seed)
    folds = np.empty(len(sources), dtype=np.intp)
    names = np.unique(sources)
    whole = np.array([name for name in names.tolist() if "/" in name])
    for place, name in enumerate(rng.permutation(whole)):
        folds[sources == name] = place % num_folds
    for name in sorted(set(names.tolist()) - set(whole.tolist())):
        rows = np.flatnonzero(sources == name)
        folds[rows] = rng.permutation(len(rows)) % num_folds
    return folds
