"""The GPU path: one tile of queries per program, online softmax over its keys (FlashAttention, Dao et al. 2022)."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from kernels import gpu
from kernels.paged_prefill.plan import tile_rows

if TYPE_CHECKING:
    from kernels.paged_prefill import PrefillTables

_LOG2_E = 1.4426950408889634
_TUNING = {2: {"tile": 64, "num_stages": 6, "num_warps": 8}, 4: {"tile": 64, "num_stages": 1, "num_warps": 8}}
"""By an element's bytes. 128 rows with 4 warps spill; so do 32 rows of float32 with a tile of 32. Six stages take 129
KiB of shared memory for heads of 128."""
_FEW_STAGES = 2
"""They take 96 KiB, of 99 in an L4 or A10."""


@triton.jit
def _take_tile(
    queries, peak, total, mixed, cache, blocks, start, lowest, end, at, scale,
    KV_SIZE: tl.constexpr, V_OFFSET: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Takes one tile of keys. Visible keys go through the same instructions with or without a mask: a token's bits must
    not tell where its chunk began. Hence the explicit fma: whether a compiler makes one must not depend on the mask."""
    token, dim = start + tl.arange(0, TILE), tl.arange(0, DIM)
    if MASKED:
        exists = (token >= lowest) & (token < end)
        block = tl.load(blocks + token // BLOCK, mask=exists, other=0).to(tl.int64)
        of_keys = cache + ((block * BLOCK + token % BLOCK) * KV_SIZE)[:, None] + dim[None, :]
        keys = tl.load(of_keys, mask=exists[:, None], other=0.0)
        values = tl.load(of_keys + V_OFFSET, mask=exists[:, None], other=0.0)
        seen = token[None, :] <= at[:, None]
        if WINDOW:
            seen &= token[None, :] > at[:, None] - WINDOW
        scores = tl.where(seen, tl.dot(queries, tl.trans(keys), input_precision="ieee"), float("-inf"))
    else:
        block = tl.load(blocks + token // BLOCK).to(tl.int64)
        of_keys = cache + ((block * BLOCK + token % BLOCK) * KV_SIZE)[:, None] + dim[None, :]
        keys = tl.load(of_keys)
        values = tl.load(of_keys + V_OFFSET)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
    # A row that has seen nothing yet has no peak, and the difference of two infinities is NaN.
    level = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(tl.fma(scores, scale, -level[:, None]))
    fade = tl.exp2(peak - level)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None], input_precision="ieee")
    return new_peak, total * fade + tl.sum(weights, 1), mixed


@triton.jit(do_not_specialize=["stride_blocks"])
def _prefill(
    q, cache, blocks, items, y, scale, stride_q, stride_blocks,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Row r of a tile is token r // GROUP, query head r % GROUP of the program's key head."""
    item, head = items + tl.program_id(0) * 5, tl.program_id(1)
    sequence, first_row, num_new = tl.load(item).to(tl.int64), tl.load(item + 1), tl.load(item + 2)
    first, begin = tl.load(item + 3), tl.load(item + 4)
    tokens: tl.constexpr = ROWS // GROUP
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    token = first + row // GROUP
    is_real = (row < tokens * GROUP) & (token < num_new)
    at_q = (first_row + token).to(tl.int64)[:, None]
    columns = ((head * GROUP + row % GROUP) * DIM)[:, None] + dim[None, :]
    queries = tl.load(q + at_q * stride_q + columns, mask=is_real[:, None], other=0.0)
    at = begin + token
    end = begin + tl.minimum(first + tokens, num_new)
    own, its_cache = blocks + sequence * stride_blocks, cache + head * DIM
    # Keys: lowest .. full with the window's edge, full .. diagonal seen by all rows, diagonal .. end with the diagonal.
    diagonal = (begin + first + 1) // TILE * TILE
    lowest = first * 0
    full = first * 0
    if WINDOW:
        lowest = tl.maximum(begin + first - WINDOW + 1, 0)
        full = tl.minimum(tl.maximum(tl.cdiv(end - WINDOW, TILE) * TILE, 0), diagonal)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM], tl.float32)
    if WINDOW:
        for start in tl.range(lowest // TILE * TILE, full, TILE, num_stages=STAGES):
            peak, total, mixed = _take_tile(
                queries, peak, total, mixed, its_cache, own, start, lowest, end, at, scale,
                2 * KV_HEADS * DIM, KV_HEADS * DIM, DIM, BLOCK, TILE, WINDOW, True)  # fmt: skip
    for start in tl.range(full, diagonal, TILE, num_stages=STAGES):
        peak, total, mixed = _take_tile(
            queries, peak, total, mixed, its_cache, own, start, lowest, end, at, scale,
            2 * KV_HEADS * DIM, KV_HEADS * DIM, DIM, BLOCK, TILE, WINDOW, False)  # fmt: skip
    # A few tiles at most.
    for start in tl.range(diagonal, end, TILE, num_stages=1):
        peak, total, mixed = _take_tile(
            queries, peak, total, mixed, its_cache, own, start, lowest, end, at, scale,
            2 * KV_HEADS * DIM, KV_HEADS * DIM, DIM, BLOCK, TILE, WINDOW, True)  # fmt: skip
    out = (mixed / total[:, None]).to(y.dtype.element_ty)
    tl.store(y + at_q * (KV_HEADS * GROUP * DIM) + columns, out, mask=is_real[:, None])


def paged_prefill(q: Tensor, cache: Tensor, tables: "PrefillTables", *, scale: float) -> Tensor:
    num_tokens, num_heads, dim = q.shape
    kv_heads, block_size = cache.shape[2] // 2, cache.shape[1]
    group = num_heads // kv_heads
    is_dense = q.stride(2) == 1 and q.stride(1) == dim and tables.blocks.stride(1) == 1 and cache.is_contiguous()
    rows = tile_rows(q.element_size())
    if not is_dense or group > rows or dim not in (64, 128):
        raise ValueError(f"paged_prefill: no kernel for q {tuple(q.shape)}, {q.stride()} over {kv_heads} key heads")
    y = q.new_empty((num_tokens, num_heads * dim))
    if num_tokens:
        tuning = _TUNING[q.element_size()]
        num_stages = 1 if gpu.must_be_careful() else tuning["num_stages"]
        if not gpu.has_large_shared_memory():
            num_stages = min(num_stages, _FEW_STAGES)
        _prefill[(len(tables.items), kv_heads)](
            q, cache, tables.blocks, tables.items, y, scale * _LOG2_E, q.stride(0), tables.blocks.stride(0),
            kv_heads, group, rows, dim, block_size, tuning["tile"], tables.window or 0, num_stages,
            num_warps=tuning["num_warps"], **gpu.LAUNCH,
        )  # fmt: skip
    return y
