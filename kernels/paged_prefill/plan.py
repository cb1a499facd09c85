"""Which tiles of queries a step has: computed on the CPU, once per step for all layers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def tile_rows(itemsize: int) -> int:
    """Query rows of a tile (tokens times the query heads that share a key head), by an element's bytes: float32 has no
    tensor cores, and more rows would spill."""
    return 128 if itemsize == 2 else 32


def plan_prefill(
    query_lens: Sequence[int], context_lens: Sequence[int], *, group: int, rows: int, first_row: int = 0
) -> NDArray[np.int32]:
    """-> [tiles, 5] int32: sequence, row of its first new token, number of new tokens, the tile's first of them, and
    the position of the first new one. Tiles with the most keys come first, so that none runs alone at the end.

    rows: of `tile_rows`; group: query heads that share a key head. context_lens count the new tokens too;
    first_row: where the first sequence's tokens begin in the batch.
    """
    queries, contexts = (np.asarray(lens, dtype=np.int64) for lens in (query_lens, context_lens))
    tokens = max(rows // group, 1)
    counts = -(-queries // tokens)
    owners = np.repeat(np.arange(len(queries)), counts)
    at = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    starts = first_row + np.cumsum(queries) - queries
    begins = contexts - queries
    items = np.stack((owners, starts[owners], queries[owners], at, begins[owners]), axis=1)
    return items[np.argsort(-(begins[owners] + at), kind="stable")].astype(np.int32)
