"""The floor that a row's kept weights exceed, for top_k and top_p: found by counting, without sorting.

`count` counts the weights above each of a few levels, which tells the level above which all kept weights lie; `collect`
brings those that exceed it together, some thousands at most as a rule; `find_floor` bisects their bits.
"""

import triton
import triton.language as tl

from kernels.sampling.weights_kernel import is_drawn, peak_of, weights_at

NUM_LEVELS = 16
_LEVELS = tl.constexpr(NUM_LEVELS)
_BITS_OF_ONE = tl.constexpr(0x3F800000)
_EXPONENT_AT = tl.constexpr(23)


@triton.jit
def _bits_of(level):
    """Level i is 4^-(i + 1), the last one is below all weights: as the bits of a float, of which all are >= 0."""
    return tl.where(level < _LEVELS - 1, _BITS_OF_ONE - ((2 * (level + 1)) << _EXPONENT_AT), -1)


@triton.jit
def _value_of(bits):
    return tl.where(bits < 0, -1.0, bits.to(tl.float32, bitcast=True))


@triton.jit
def _is_cut(top_k, top_p, vocab):
    return ((top_k > 0) & (top_k < vocab)) | (top_p < 1)


@triton.jit
def count(
    logits, highest, temperature, top_k, top_p, numbers, masses, vocab, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """numbers, masses [rows, tiles, levels]: of each tile's weights above each level."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, heat = peak_of(highest, row, tiles, TILES), tl.load(temperature + row)
    if is_drawn(peak, heat) & _is_cut(tl.load(top_k + row), tl.load(top_p + row), vocab):
        level = tl.arange(0, _LEVELS)
        floor = _value_of(_bits_of(level))[:, None]
        number, mass = tl.zeros([_LEVELS, COLUMNS], tl.int32), tl.zeros([_LEVELS, COLUMNS], tl.float64)
        for first in range(tile * TILE, tl.minimum((tile + 1) * TILE, vocab), COLUMNS):
            at = first + tl.arange(0, COLUMNS)
            weights = weights_at(logits + row * vocab, at, vocab, peak, 1 / heat)[None, :]
            is_above = (weights > floor) & (at < vocab)[None, :]
            number += is_above.to(tl.int32)
            mass += tl.where(is_above, weights, 0.0).to(tl.float64)
        to = (row * tiles + tile) * _LEVELS + level
        tl.store(numbers + to, tl.sum(number, 1))
        tl.store(masses + to, tl.sum(mass, 1))


@triton.jit
def _choose_level(numbers, masses, row, tile, top_k, top_p, vocab, tiles, TILES: tl.constexpr):
    """The highest level above which all kept weights lie, as bits, the number and the mass of the weights above it,
    the number of those in the tiles before `tile`, and the mass of all."""
    each, level = tl.arange(0, TILES)[:, None], tl.arange(0, _LEVELS)[None, :]
    of = (row * tiles + each) * _LEVELS + level
    number = tl.load(numbers + of, mask=each < tiles, other=0)
    mass = tl.sum(tl.load(masses + of, mask=each < tiles, other=0.0), 0)
    level, all_numbers = tl.arange(0, _LEVELS), tl.sum(number, 0)
    total = tl.sum(tl.where(level == _LEVELS - 1, mass, 0.0), 0)
    has_limit = (top_k > 0) & (top_k < vocab)
    is_enough = tl.where(has_limit, (all_numbers >= top_k).to(tl.int32), (mass >= total * top_p).to(tl.int32))
    # Rounding may hide it at the last level.
    chosen = tl.minimum(tl.min(tl.where(is_enough != 0, level, _LEVELS), 0), _LEVELS - 1)
    is_chosen = level == chosen
    its_number, its_mass = tl.sum(tl.where(is_chosen, all_numbers, 0), 0), tl.sum(tl.where(is_chosen, mass, 0.0), 0)
    before = tl.sum(tl.sum(tl.where((each < tile) & is_chosen[None, :], number, 0), 0), 0)
    return _bits_of(chosen), its_number, its_mass, before, total


@triton.jit
def collect(
    logits, highest, temperature, top_k, top_p, numbers, masses, likely, vocab, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """likely [rows, vocab]: the weights above the row's level, in the vocabulary's order."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, heat = peak_of(highest, row, tiles, TILES), tl.load(temperature + row)
    its_k, its_p = tl.load(top_k + row), tl.load(top_p + row)
    if is_drawn(peak, heat) & _is_cut(its_k, its_p, vocab):
        low, _, _, before, _ = _choose_level(numbers, masses, row, tile, its_k, its_p, vocab, tiles, TILES)
        at = tile * TILE + tl.arange(0, TILE)
        weights = weights_at(logits + row * vocab, at, vocab, peak, 1 / heat)
        is_above = (weights > _value_of(low)) & (at < vocab)
        place = before + tl.cumsum(is_above.to(tl.int32), 0) - 1
        tl.store(likely + row * vocab + place, weights, mask=is_above)


@triton.jit
def _above(weights, end, floor, TILE: tl.constexpr):
    """How many weights exceed the floor, and their sum."""
    number, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    for first in range(0, end, TILE):
        at = first + tl.arange(0, TILE)
        each = tl.load(weights + at, mask=at < end, other=-1.0)
        number += tl.sum((each > floor).to(tl.int32), 0)
        mass += tl.sum(tl.where(each > floor, each, 0.0).to(tl.float64), 0)
    return number, mass


@triton.jit
def _search(weights, end, low, number, mass, most, limit, TILE: tl.constexpr):
    """Bisect the weights' bits between `low` and 1 until they hold one weight, or equal ones. Too much exceeds `low`:
    `most` weights or more, or a mass of `limit` or more. number, mass: of the weights above low. Returns low, number,
    mass, high."""
    high, above = tl.full([], _BITS_OF_ONE, tl.int32), tl.full([], 0, tl.int32)
    while (high - low > 1) & (number - above > 1):
        middle = low + (high - low) // 2
        its_number, its_mass = _above(weights, end, middle.to(tl.float32, bitcast=True), TILE)
        is_few = (its_number < most) & (its_mass < limit)
        high, above = tl.where(is_few, middle, high), tl.where(is_few, its_number, above)
        low, number = tl.where(is_few, low, middle), tl.where(is_few, number, its_number)
        mass = tl.where(is_few, mass, its_mass)
    return low, number, mass, high


@triton.jit
def find_floor(
    logits, highest, temperature, top_k, top_p, numbers, masses, likely, floors, vocab, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """floors [rows]: of the top_k likeliest tokens, the fewest that have top_p of their sum exceed it; -1 for all."""
    row = tl.program_id(0).to(tl.int64)
    peak, heat = peak_of(highest, row, tiles, TILES), tl.load(temperature + row)
    its_k, its_p = tl.load(top_k + row), tl.load(top_p + row)
    floor = tl.full([], -1.0, tl.float32)
    if is_drawn(peak, heat) & _is_cut(its_k, its_p, vocab):
        low, number, mass, _, within = _choose_level(numbers, masses, row, 0, its_k, its_p, vocab, tiles, TILES)
        weights, end = likely + row * vocab, number
        if (its_k > 0) & (its_k < vocab):
            no_limit = tl.full([], float("inf"), tl.float64)
            low, number, mass, high = _search(weights, end, low, number, mass, its_k, no_limit, TILE)
            # More than top_k are left only where the last ones weigh the same.
            within = mass - (number - its_k) * high.to(tl.float32, bitcast=True).to(tl.float64)
        if its_p < 1:
            low, _, _, _ = _search(weights, end, low, number, mass, vocab + 1, within * its_p, TILE)
        floor = _value_of(low)
    tl.store(floors + row, floor)
