"""Which tokens of a step meet which adapter pages: the work list, made once per step for all layers and projections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PAGE_RANKS = 16
"""Rank columns of a page, see `kernels.lora.pages`."""


MAX_RUN = 48
"""The most tokens of an item that suit the CPU's kernels: a long prompt then has several items for each thread."""


class Shrink(NamedTuple):
    """A shrink item's columns: tokens rows[first : first + num_rows] times one page, into columns of the shrunk rows
    that begin at place * PAGE_RANKS. place: the page's index among its adapter's pages."""

    page: int
    first: int
    num_rows: int
    place: int


class Expand(NamedTuple):
    """An expand item's columns: the same tokens get the sum over their adapter's pages
    pages[first_page : first_page + num_pages], in this order."""

    first_page: int
    num_pages: int
    first: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """All int32, contiguous, on the CPU. Nothing here depends on a layer or projection: a kernel walks the items times
    the slices of its projection (q, k and v of a fused one), times chunks of the input (shrink) or tiles of the output
    (expand) as it likes, and a projection's `LoraPages.ranks` says how many columns there are.

    rows [n]: the tokens that have an adapter, each once. A run of them shares one adapter and is ascending.
    pages [p]: the pages of the adapters in use, those of an adapter next to each other and in its order.
    shrink [items, 4]: `Shrink`; expand [runs, 4]: `Expand`. Items of one adapter are next to each other, so that its
    pages are read from memory once; adapters are in the order of their slots.
    num_tokens: of the whole step. num_places: the most pages of any adapter in use: between the two halves a token has
    num_slices * num_places * PAGE_RANKS numbers, of which its own pages' are written and read.
    """

    rows: Tensor
    pages: Tensor
    shrink: Tensor
    expand: Tensor
    num_tokens: int
    num_places: int


def plan_lora(
    chunk_slots: Sequence[int], chunk_lens: Sequence[int], slot_pages: Sequence[Sequence[int]], *, max_run: int
) -> LoraPlan | None:
    """None if no token has an adapter, or none with pages.

    chunk_slots, chunk_lens: the adapter slot of each of the step's chunks, or -1 for none, and its number of tokens.
    slot_pages: the pages of the adapter in each slot. max_run: the most tokens of an item.
    """
    tokens_of: dict[int, list[int]] = {}
    start = 0
    for slot, length in zip(chunk_slots, chunk_lens, strict=True):
        if slot >= 0 and length:
            tokens_of.setdefault(slot, []).extend(range(start, start + length))
        start += length
    rows: list[int] = []
    pages: list[int] = []
    shrink: list[Shrink] = []
    expand: list[Expand] = []
    for slot in sorted(tokens_of):
        own, tokens = slot_pages[slot], tokens_of[slot]
        if not own:
            continue
        runs = [(i, min(max_run, len(tokens) - i)) for i in range(0, len(tokens), max_run)]
        for place, page in enumerate(own):
            shrink += [Shrink(page, len(rows) + first, count, place) for first, count in runs]
        expand += [Expand(len(pages), len(own), len(rows) + first, count) for first, count in runs]
        rows += tokens
        pages += own
    if not rows:
        return None
    return LoraPlan(
        rows=torch.tensor(rows, dtype=torch.int32),
        pages=torch.tensor(pages, dtype=torch.int32),
        shrink=torch.tensor(shrink, dtype=torch.int32),
        expand=torch.tensor(expand, dtype=torch.int32),
        num_tokens=start,
        num_places=max(item.num_pages for item in expand),
    )
