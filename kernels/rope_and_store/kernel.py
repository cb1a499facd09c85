"""The GPU path: each program takes some heads of one token, each head as two halves."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

_HEADS = 8


@triton.jit
def _rope_and_store(
    heads, cache, cos, sin, positions, slots, stride, num_heads,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """cache is dense, slot after slot. Only the second half of sin is read, since the first half is negated."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half: tl.constexpr = DIM // 2
    pair = tl.arange(0, half)[None, :]
    exists = head < num_heads
    first_key = num_heads - 2 * KV_HEADS
    is_rotated = head < num_heads - KV_HEADS

    source = heads + token * stride + head * DIM + pair
    left = tl.load(source, mask=exists, other=0.0)
    right = tl.load(source + half, mask=exists, other=0.0)
    row = tl.load(positions + token).to(tl.int64) * DIM
    cosine = tl.load(cos + row + pair).to(tl.float32)
    sine = tl.load(sin + row + half + pair).to(tl.float32)
    wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
    left = tl.where(is_rotated, wide_left * cosine - wide_right * sine, wide_left).to(heads.dtype.element_ty)
    right = tl.where(is_rotated, wide_right * cosine + wide_left * sine, wide_right).to(heads.dtype.element_ty)

    is_query = head < first_key
    tl.store(source, left, mask=is_query)
    tl.store(source + half, right, mask=is_query)
    slot = tl.load(slots + token).to(tl.int64)
    target = cache + slot * (2 * KV_HEADS * DIM) + (head - first_key) * DIM + pair
    is_stored = exists & (head >= first_key)
    tl.store(target, left, mask=is_stored)
    tl.store(target + half, right, mask=is_stored)


def rope_and_store(heads: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor) -> None:
    num_tokens, num_heads, head_dim = heads.shape
    is_dense = heads.stride(2) == 1 and heads.stride(1) == head_dim and head_dim & (head_dim - 1) == 0
    if not (is_dense and all(t.is_contiguous() for t in (cache, cos, sin, positions, slots))):
        raise ValueError(f"rope_and_store: no kernel for heads {tuple(heads.shape)} with strides {heads.stride()}")
    if num_tokens:
        _rope_and_store[(num_tokens, triton.cdiv(num_heads, _HEADS))](
            heads, cache, cos, sin, positions, slots, heads.stride(0), num_heads, cache.shape[2] // 2, head_dim, _HEADS,
            num_warps=max(_HEADS * head_dim // 512, 1), **LAUNCH,
        )  # fmt: skip
