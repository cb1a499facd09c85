"""The GPU path: a persistent grid takes parts of sequences, with online softmax (FlashAttention, Dao et al. 2022)."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

if TYPE_CHECKING:
    from kernels.paged_decode import DecodeTables

_LOG2_E = 1.4426950408889634
_ROWS = 16
"""Query heads of a key head, padded to the fewest rows that tensor cores multiply."""
_TUNING = {2: {"tile": 64, "num_stages": 3, "num_warps": 2}, 4: {"tile": 32, "num_stages": 2, "num_warps": 4}}
"""By an element's bytes. A tile of 128 spills."""


@triton.jit(do_not_specialize=["stride_blocks"])
def _decode(
    q, cache, blocks, items, programs, partial, mass, scale, stride_q, stride_blocks,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """partial [parts, kv_heads, GROUP, DIM], mass [parts, kv_heads, GROUP] (log2 of the sum), both fp32."""
    program, head = tl.program_id(0), tl.program_id(1)
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    is_row = row < GROUP
    for item in range(tl.load(programs + program), tl.load(programs + program + 1)):
        sequence = tl.load(items + item * 4).to(tl.int64)
        first, end = tl.load(items + item * 4 + 1), tl.load(items + item * 4 + 2)
        place = tl.load(items + item * 4 + 3).to(tl.int64)
        of_q = q + sequence * stride_q + (head * GROUP + row)[:, None] * DIM + dim[None, :]
        queries = tl.load(of_q, mask=is_row[:, None], other=0.0)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        for start in range(first, end, TILE):
            token = start + tl.arange(0, TILE)
            seen = token < end
            block = tl.load(blocks + sequence * stride_blocks + token // BLOCK, mask=seen, other=0).to(tl.int64)
            at = (block * BLOCK + token % BLOCK) * (2 * KV_HEADS * DIM) + head * DIM
            keys = tl.load(cache + at[:, None] + dim[None, :], mask=seen[:, None], other=0.0)
            values = tl.load(cache + at[:, None] + (KV_HEADS * DIM + dim)[None, :], mask=seen[:, None], other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights, fade = tl.exp2(scores - new_peak[:, None]), tl.exp2(peak - new_peak)
            total = total * fade + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None], input_precision="ieee")
            peak = new_peak
        at = (place * KV_HEADS + head) * GROUP + row
        tl.store(partial + at[:, None] * DIM + dim[None, :], mixed / total[:, None], mask=is_row[:, None])
        tl.store(mass + at, peak + tl.log2(total), mask=is_row)


@triton.jit
def _combine(partial, mass, parts, y, num_heads, DIM: tl.constexpr):
    """Combines the parts in their order, one head of one sequence per program."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, DIM)
    first, end = tl.load(parts + sequence), tl.load(parts + sequence + 1)
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([DIM], tl.float32)
    for part in range(first, end):
        at = (part * num_heads + head).to(tl.int64)
        its_mass = tl.load(mass + at)
        new_peak = tl.maximum(peak, its_mass)
        fade, weight = tl.exp2(peak - new_peak), tl.exp2(its_mass - new_peak)
        mixed = mixed * fade + tl.load(partial + at * DIM + dim) * weight
        total = total * fade + weight
        peak = new_peak
    # A row that pads the batch has no parts.
    out = mixed / tl.where(end > first, total, 1.0)
    tl.store(y + (sequence.to(tl.int64) * num_heads + head) * DIM + dim, out.to(y.dtype.element_ty))


def paged_decode(q: Tensor, cache: Tensor, tables: "DecodeTables", *, scale: float) -> Tensor:
    num_seqs, num_heads, dim = q.shape
    kv_heads, block_size = cache.shape[2] // 2, cache.shape[1]
    is_dense = q.stride(2) == 1 and q.stride(1) == dim and tables.blocks.stride(1) == 1 and cache.is_contiguous()
    if not is_dense or num_heads // kv_heads > _ROWS or dim not in (64, 128):
        raise ValueError(f"paged_decode: no kernel for q {tuple(q.shape)}, {q.stride()} over {kv_heads} key heads")
    partial = q.new_empty((tables.most_parts, num_heads, dim), dtype=torch.float32)
    mass = q.new_empty((tables.most_parts, num_heads), dtype=torch.float32)
    y = q.new_empty((num_seqs, num_heads * dim))
    if num_seqs:
        tuning = _TUNING[q.element_size()]
        _decode[(len(tables.programs) - 1, kv_heads)](
            q, cache, tables.blocks, tables.items, tables.programs, partial, mass, scale * _LOG2_E, q.stride(0),
            tables.blocks.stride(0), kv_heads, num_heads // kv_heads, _ROWS, dim, block_size, tuning["tile"],
            num_warps=tuning["num_warps"], num_stages=tuning["num_stages"], **LAUNCH,
        )  # fmt: skip
        _combine[(num_seqs, num_heads)](partial, mass, tables.parts, y, num_heads, dim, num_warps=1, **LAUNCH)
    return y
