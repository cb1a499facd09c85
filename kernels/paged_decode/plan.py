"""Which program reads which part of which sequence: computed on the CPU, once per step for all layers of one window."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_TILE = 64
_MIN_PART, _LONG_PART, _MAX_PARTS = 256, 512, 128
"""Shorter parts pay for queries and partial results more often; more parts fill a Hopper no better. A sequence of 16
short parts or more fills it with long ones, too."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """All int32. items [n, 4]: sequence, first token, end, place of the partial result; program i takes the items
    programs[i] .. programs[i + 1] - 1. parts [sequences + 1]: where each sequence's partial results begin, and the
    end; a sequence without tokens has none."""

    items: Ints
    programs: Ints
    parts: Ints


def part_size(num_tokens: int) -> int:
    """Tokens of each part but the last. Depends on the sequence alone, so that the result's bits do, too."""
    return int(_part_sizes(np.asarray(num_tokens)))


def _part_sizes(lens: NDArray[np.int64]) -> NDArray[np.int64]:
    wanted = np.clip(lens // 16, _MIN_PART, _LONG_PART)
    return -(-np.maximum(wanted, -(-lens // _MAX_PARTS)) // _TILE) * _TILE


def max_parts(max_tokens: int) -> int:
    """The most parts of a sequence of up to max_tokens tokens."""
    return min(-(-max_tokens // _MIN_PART), _MAX_PARTS)


def plan_decode(context_lens: Sequence[int], *, num_programs: int, window: int | None = None) -> DecodePlan:
    """context_lens count the new token, too; 0 for a row that pads a batch. With a window, only the last `window`
    tokens are read. Parts are dealt out from the largest on, back and forth, so that no program has more than one part
    too many."""
    lens = np.asarray(context_lens, dtype=np.int64)
    begins = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
    lens = lens - begins
    sizes = _part_sizes(lens)
    counts = -(-lens // sizes)
    parts = np.concatenate(([0], np.cumsum(counts)))
    total = int(parts[-1])
    owners = np.repeat(np.arange(len(lens)), counts)
    firsts = begins[owners] + (np.arange(total) - parts[owners]) * sizes[owners]
    ends = np.minimum(firsts + sizes[owners], begins[owners] + lens[owners])
    order, programs = _deal(ends - firsts, num_programs)
    items = np.stack((owners, firsts, ends, np.arange(total)), axis=1)[order]
    return DecodePlan(items.astype(np.int32), programs.astype(np.int32), parts.astype(np.int32))


def _deal(sizes: NDArray[np.int64], num_programs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The items in the order of the programs that take them, and where each program's items begin, and the end."""
    by_size = np.argsort(-sizes, kind="stable")
    turn, at = np.divmod(np.arange(len(sizes)), num_programs)
    takers = np.where(turn % 2 == 0, at, num_programs - 1 - at)
    order = np.argsort(takers, kind="stable")
    counts = np.bincount(takers, minlength=num_programs)
    return by_size[order], np.concatenate(([0], np.cumsum(counts)))
