"""The GPU path: instead of sorting, thresholds are found by a search over their bits; one program draws per row."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

if TYPE_CHECKING:
    from kernels.sampling.step import StepParameters

_ADJUST_BLOCK, _BIASES, _TILE, _SMALL_TILE = 2048, 64, 4096, 512
_IN_PROMPT = tl.constexpr(1 << 30)
_GREEDY_BELOW = tl.constexpr(1e-5)
_BITS_OF_ONE = tl.constexpr(0x3F800000)


@triton.jit
def _adjust(
    logits, out, slots, counts, presence, frequency, repetition, masks, allowed, stride, stride_allowed, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Applies penalties and masks; writes fp32."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < vocab
    value = tl.load(logits + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        count = tl.load(counts + slot * vocab + at, mask=mask, other=0)
        repeated = tl.load(repetition + row)
        value = tl.where(count > 0, tl.where(value > 0, value / repeated, value * repeated), value)
        count = count & (_IN_PROMPT - 1)
        value -= tl.load(frequency + row) * count + tl.where(count > 0, tl.load(presence + row), 0.0)
    of_mask = tl.load(masks + row).to(tl.int64)
    if of_mask >= 0:
        words = tl.load(allowed + of_mask * stride_allowed + at // 32, mask=mask, other=0)
        value = tl.where((words >> (at % 32)) & 1 != 0, value, float("-inf"))
    tl.store(out + row * vocab + at, value, mask=mask)


@triton.jit
def _bias(out, starts, ends, ids, values, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    end = tl.load(ends + row)
    for first in range(tl.load(starts + row), end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = at < end
        place = out + row * vocab + tl.load(ids + at, mask=mask, other=0)
        tl.store(place, tl.load(place, mask=mask, other=0.0) + tl.load(values + at, mask=mask, other=0.0), mask=mask)


@triton.jit
def _weights(logits, first, vocab, peak, factor, TILE: tl.constexpr):
    """A tile's weights: 1 for the likeliest token, 0 beyond the vocabulary."""
    at = first + tl.arange(0, TILE)
    return tl.exp((tl.load(logits + at, mask=at < vocab, other=float("-inf")) - peak) * factor)


@triton.jit
def _above(logits, vocab, peak, factor, floor, TILE: tl.constexpr):
    """How many weights exceed the floor, and their sum."""
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    for first in range(0, vocab, TILE):
        weights = _weights(logits, first, vocab, peak, factor, TILE)
        number += tl.sum((weights > floor).to(tl.int32), 0)
        mass += tl.sum(tl.where(weights > floor, weights, 0.0).to(tl.float64), 0)
    return number, mass


@triton.jit
def _search(logits, vocab, peak, factor, low, number, mass, most, limit, TILE: tl.constexpr):
    """Bisect the weights' bits between `low` and 1 until they hold one weight, or equal ones. Too much exceeds `low`:
    `most` weights or more, or a mass of `limit` or more. number, mass: of the weights above low. Returns low, number,
    mass, high."""
    high, above = tl.full([], _BITS_OF_ONE, tl.int32), tl.full([], 0, tl.int32)
    while (high - low > 1) & (number - above > 1):
        middle = low + (high - low) // 2
        its_number, its_mass = _above(logits, vocab, peak, factor, middle.to(tl.float32, bitcast=True), TILE)
        is_few = (its_number < most) & (its_mass < limit)
        high, above = tl.where(is_few, middle, high), tl.where(is_few, its_number, above)
        low, number = tl.where(is_few, low, middle), tl.where(is_few, number, its_number)
        mass = tl.where(is_few, mass, its_mass)
    return low, number, mass, high


@triton.jit
def _floor(logits, vocab, peak, factor, top_k, top_p, TILE: tl.constexpr):
    """The floor that kept weights exceed: of the top_k likeliest tokens, the fewest that have top_p of their sum."""
    low = tl.full([], -1, tl.int32)
    number, mass = _above(logits, vocab, peak, factor, -1.0, TILE)
    within = mass
    if (top_k > 0) & (top_k < vocab):
        no_limit = tl.full([], float("inf"), tl.float64)
        low, number, mass, high = _search(logits, vocab, peak, factor, low, number, mass, top_k, no_limit, TILE)
        # More than top_k are left only where the last ones weigh the same.
        within = mass - (number - top_k) * high.to(tl.float32, bitcast=True).to(tl.float64)
    if top_p < 1:
        low, _, _, _ = _search(logits, vocab, peak, factor, low, number, mass, vocab + 1, within * top_p, TILE)
    return tl.where(low < 0, -1.0, low.to(tl.float32, bitcast=True))


@triton.jit
def _kept(logits, first, vocab, peak, factor, floor, min_p, TILE: tl.constexpr):
    weights = _weights(logits, first, vocab, peak, factor, TILE)
    return tl.where((weights > floor) & (weights >= min_p), weights, 0.0).to(tl.float64)


@triton.jit
def _find(logits, first, end, vocab, peak, factor, floor, min_p, reached, target, TILE: tl.constexpr):
    """The tile between first and end in which the running sum of kept weights exceeds the target, and the sum before
    that tile. If rounding hides it, the last tile that keeps anything."""
    before, found, is_found = reached, first, tl.full([], 0, tl.int32)
    for start in range(first, end, TILE):
        own = tl.sum(_kept(logits, start, vocab, peak, factor, floor, min_p, TILE), 0)
        is_taken = (is_found == 0) & (own > 0)
        before, found = tl.where(is_taken, reached, before), tl.where(is_taken, start, found)
        reached += own
        is_found = tl.where(reached > target, 1, is_found)
    return found, before


@triton.jit
def _invert(logits, vocab, peak, factor, floor, min_p, uniform, TILE: tl.constexpr, SMALL: tl.constexpr):
    """The first token, in the vocabulary's order, at which the sum of kept weights exceeds its part `uniform`."""
    target, nothing = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    for first in range(0, vocab, TILE):
        target += tl.sum(_kept(logits, first, vocab, peak, factor, floor, min_p, TILE), 0)
    target *= uniform
    start = tl.full([], 0, tl.int32)
    found, before = _find(logits, start, vocab, vocab, peak, factor, floor, min_p, nothing, target, TILE)
    end = tl.minimum(found + TILE, vocab)
    found, before = _find(logits, found, end, vocab, peak, factor, floor, min_p, before, target, SMALL)
    at = found + tl.arange(0, SMALL)
    kept = _kept(logits, found, vocab, peak, factor, floor, min_p, SMALL)
    beyond = (before + tl.cumsum(kept, 0) > target) & (kept > 0)
    last = tl.max(tl.where(kept > 0, at, 0), 0)
    return tl.minimum(tl.min(tl.where(beyond, at, vocab), 0), last)


@triton.jit
def _draw(
    logits, ids, temperature, top_k, top_p, min_p, uniform, slots, counts, vocab,
    TILE: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    peak, best = tl.full([], float("-inf"), tl.float32), tl.full([], 0, tl.int32)
    num_bad = tl.full([], 0, tl.int32)
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        value = tl.load(logits + at, mask=at < vocab, other=float("-inf"))
        largest = tl.max(value, 0)
        its_first = tl.min(tl.where(value == largest, at, vocab), 0)
        best, peak = tl.where(largest > peak, its_first, best), tl.maximum(largest, peak)
        num_bad += tl.sum(((value != value) | (value == float("inf"))).to(tl.int32), 0)
    chosen, heat = best, tl.load(temperature + row)
    is_sound = (num_bad == 0) & (peak > float("-inf"))
    if is_sound & (heat >= _GREEDY_BELOW):
        factor = 1 / heat
        floor = _floor(logits, vocab, peak, factor, tl.load(top_k + row), tl.load(top_p + row), TILE)
        least, its_uniform = tl.load(min_p + row), tl.load(uniform + row)
        chosen = _invert(logits, vocab, peak, factor, floor, least, its_uniform, TILE, SMALL)
    chosen = tl.where(is_sound, chosen, -1)
    tl.store(ids + row, chosen)
    slot = tl.load(slots + row).to(tl.int64)
    if (slot >= 0) & is_sound:
        place = counts + slot * vocab + chosen
        tl.store(place, tl.load(place) + 1)


def choose(logits: Tensor, p: "StepParameters") -> Tensor:
    n, vocab = logits.shape
    if logits.stride(1) != 1 or not (p.counts.is_contiguous() and p.allowed.stride(1) == 1):
        raise ValueError(f"choose: no kernel for logits with strides {logits.stride()}")
    ids = torch.empty(n, dtype=torch.int32, device=logits.device)
    if n:
        adjusted = torch.empty((n, vocab), dtype=torch.float32, device=logits.device)
        _adjust[(n, triton.cdiv(vocab, _ADJUST_BLOCK))](
            logits, adjusted, p.slots, p.counts, p.presence, p.frequency, p.repetition, p.masks, p.allowed,
            logits.stride(0), p.allowed.stride(0), vocab, _ADJUST_BLOCK, num_warps=8, **LAUNCH,
        )  # fmt: skip
        _bias[(n,)](
            adjusted, p.bias_starts, p.bias_ends, p.bias_ids, p.bias_values, vocab, _BIASES, num_warps=2, **LAUNCH
        )
        _draw[(n,)](
            adjusted, ids, p.temperature, p.top_k, p.top_p, p.min_p, p.uniform, p.slots, p.counts, vocab,
            _TILE, _SMALL_TILE, num_warps=_TILE // 256, **LAUNCH,
        )  # fmt: skip
    return ids
