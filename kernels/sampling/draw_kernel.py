"""The draw: each tile's largest logit first; at the end, the sums of the kept weights, and the token they lead to."""

import triton
import triton.language as tl

from kernels.sampling.weights_kernel import is_drawn, peak_of, weights_at


@triton.jit
def peaks(logits, highest, firsts, vocab, tiles, TILE: tl.constexpr):
    """Each tile's largest logit, NaN if the tile holds NaN or +inf, and the first token that has it."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * TILE + tl.arange(0, TILE)
    value = tl.load(logits + row * vocab + at, mask=at < vocab, other=float("-inf"))
    largest = tl.max(value, 0)
    num_bad = tl.sum(((value != value) | (value == float("inf"))).to(tl.int32), 0)
    tl.store(firsts + row * tiles + tile, tl.min(tl.where(value == largest, at, vocab), 0))
    tl.store(highest + row * tiles + tile, tl.where(num_bad == 0, largest, float("nan")))


@triton.jit
def _kept_at(logits, at, end, peak, factor, floor, min_p):
    weights = weights_at(logits, at, end, peak, factor)
    return tl.where((weights > floor) & (weights >= min_p), weights, 0.0).to(tl.float64)


@triton.jit
def keep(
    logits, highest, temperature, floors, min_p, kept, vocab, tiles, TILES: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Each tile's sum of kept weights."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, heat = peak_of(highest, row, tiles, TILES), tl.load(temperature + row)
    if is_drawn(peak, heat):
        at = tile * TILE + tl.arange(0, TILE)
        floor, least = tl.load(floors + row), tl.load(min_p + row)
        own = _kept_at(logits + row * vocab, at, vocab, peak, 1 / heat, floor, least)
        tl.store(kept + row * tiles + tile, tl.sum(own, 0))


@triton.jit
def _invert(
    logits, kept, vocab, tiles, peak, factor, floor, min_p, uniform,
    TILES: tl.constexpr, TILE: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """The first token, in the vocabulary's order, at which the sum of kept weights exceeds its part `uniform`. If
    rounding hides it, the last token that is kept."""
    tile = tl.arange(0, TILES)
    sums = tl.load(kept + tile, mask=tile < tiles, other=0.0)
    reached, target = tl.cumsum(sums, 0), tl.sum(sums, 0) * uniform
    last = tl.max(tl.where(sums > 0, tile, 0), 0)
    chosen = tl.minimum(tl.min(tl.where((reached > target) & (sums > 0), tile, TILES), 0), last)
    before = tl.sum(tl.where(tile < chosen, sums, 0.0), 0)
    start, end = chosen * TILE, tl.minimum((chosen + 1) * TILE, vocab)
    found, is_found = start, start * 0
    reached_here = before
    for first in range(start, end, SMALL):
        own = tl.sum(_kept_at(logits, first + tl.arange(0, SMALL), end, peak, factor, floor, min_p), 0)
        is_taken = (is_found == 0) & (own > 0)
        before, found = tl.where(is_taken, reached_here, before), tl.where(is_taken, first, found)
        reached_here += own
        is_found = tl.where((own > 0) & (reached_here > target), 1, is_found)
    at = found + tl.arange(0, SMALL)
    weights = _kept_at(logits, at, end, peak, factor, floor, min_p)
    beyond = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
    return tl.minimum(tl.min(tl.where(beyond, at, vocab), 0), tl.max(tl.where(weights > 0, at, 0), 0))


@triton.jit
def pick(
    logits, highest, firsts, temperature, floors, min_p, uniform, kept, ids, slots, counts, vocab, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """The row's token, -1 for a row that has none; counts it where the row counts."""
    row = tl.program_id(0).to(tl.int64)
    peak, heat = peak_of(highest, row, tiles, TILES), tl.load(temperature + row)
    at = tl.arange(0, TILES)
    of_row = at < tiles
    is_largest = tl.load(highest + row * tiles + at, mask=of_row, other=float("-inf")) == peak
    chosen = tl.min(tl.where(is_largest, tl.load(firsts + row * tiles + at, mask=of_row, other=vocab), vocab), 0)
    if is_drawn(peak, heat):
        floor, least, its_uniform = tl.load(floors + row), tl.load(min_p + row), tl.load(uniform + row)
        chosen = _invert(
            logits + row * vocab, kept + row * tiles, vocab, tiles, peak, 1 / heat, floor, least, its_uniform,
            TILES, TILE, SMALL)  # fmt: skip
    is_sound = peak > float("-inf")
    chosen = tl.where(is_sound, chosen, -1)
    tl.store(ids + row, chosen)
    slot = tl.load(slots + row).to(tl.int64)
    if (slot >= 0) & is_sound:
        place = counts + slot * vocab + chosen
        tl.store(place, tl.load(place) + 1)
