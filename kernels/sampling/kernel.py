"""The GPU path: each pass over the vocabulary is spread over programs, one for each tile of a row."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH
from kernels.sampling.draw_kernel import keep, peaks, pick
from kernels.sampling.floor_kernel import NUM_LEVELS, collect, count, find_floor

if TYPE_CHECKING:
    from kernels.sampling.step import StepParameters

_ADJUST_BLOCK, _BIASES, _TILE, _SMALL_TILE, _COLUMNS, _FLOOR_TILE = 2048, 64, 4096, 512, 256, 2048
_IN_PROMPT = tl.constexpr(1 << 30)


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


def choose(logits: Tensor, p: "StepParameters") -> Tensor:
    n, vocab = logits.shape
    if logits.stride(1) != 1 or not (p.counts.is_contiguous() and p.allowed.stride(1) == 1):
        raise ValueError(f"choose: no kernel for logits with strides {logits.stride()}")
    device = logits.device
    ids = torch.empty(n, dtype=torch.int32, device=device)
    if not n:
        return ids
    adjusted = torch.empty((n, vocab), dtype=torch.float32, device=device)
    _adjust[(n, triton.cdiv(vocab, _ADJUST_BLOCK))](
        logits, adjusted, p.slots, p.counts, p.presence, p.frequency, p.repetition, p.masks, p.allowed,
        logits.stride(0), p.allowed.stride(0), vocab, _ADJUST_BLOCK, num_warps=8, **LAUNCH,
    )  # fmt: skip
    _bias[(n,)](adjusted, p.bias_starts, p.bias_ends, p.bias_ids, p.bias_values, vocab, _BIASES, num_warps=2, **LAUNCH)

    tiles = triton.cdiv(vocab, _TILE)
    most_tiles, grid = triton.next_power_of_2(tiles), (n, tiles)

    def table(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    highest, firsts = table(n, tiles, dtype=torch.float32), table(n, tiles, dtype=torch.int32)
    peaks[grid](adjusted, highest, firsts, vocab, tiles, _TILE, num_warps=8, **LAUNCH)
    numbers, masses = table(n, tiles, NUM_LEVELS, dtype=torch.int32), table(n, tiles, NUM_LEVELS, dtype=torch.float64)
    floors, likely = table(n, dtype=torch.float32), torch.empty_like(adjusted)
    heats = adjusted, highest, p.temperature, p.top_k, p.top_p
    count[grid](*heats, numbers, masses, vocab, tiles, most_tiles, _TILE, _COLUMNS, num_warps=4, **LAUNCH)
    collect[grid](*heats, numbers, masses, likely, vocab, tiles, most_tiles, _TILE, num_warps=8, **LAUNCH)
    find_floor[(n,)](
        *heats, numbers, masses, likely, floors, vocab, tiles, most_tiles, _FLOOR_TILE, num_warps=8, **LAUNCH
    )
    kept = table(n, tiles, dtype=torch.float64)
    keep[grid](
        adjusted, highest, p.temperature, floors, p.min_p, kept, vocab, tiles, most_tiles, _TILE, num_warps=8, **LAUNCH
    )
    pick[(n,)](
        adjusted, highest, firsts, p.temperature, floors, p.min_p, p.uniform, kept, ids, p.slots, p.counts, vocab,
        tiles, most_tiles, _TILE, _SMALL_TILE, num_warps=8, **LAUNCH,
    )  # fmt: skip
    return ids
