"""The GPU path: one program per row, which stays in registers between the sum and the product."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

_MAX_SIZE = 16384


@triton.jit
def _rms_norm(
    x, delta, weight, y, num_inner, stride_outer, stride_inner, stride_delta, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < SIZE
    of_x = x + row // num_inner * stride_outer + row % num_inner * stride_inner + at
    value = tl.load(of_x, mask=mask, other=0.0)
    if ADDS:
        # Rounded like the stored sum, which the next layer reads.
        added = value.to(tl.float32) + tl.load(delta + row * stride_delta + at, mask=mask, other=0.0).to(tl.float32)
        value = added.to(x.dtype.element_ty)
        tl.store(of_x, value, mask=mask)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = (wide * scale).to(x.dtype.element_ty).to(tl.float32)
    product = normed * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * SIZE + at, product.to(y.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, delta: Tensor | None = None) -> Tensor:
    """x of two or three dimensions; delta: added to x first, in place."""
    size = x.shape[-1]
    if x.dim() not in (2, 3) or x.stride(-1) != 1 or not weight.is_contiguous() or size > _MAX_SIZE:
        raise ValueError(f"rms_norm: no kernel for x {tuple(x.shape)} with strides {x.stride()}")
    if delta is not None and (delta.shape != x.shape or x.dim() != 2 or delta.stride(-1) != 1):
        raise ValueError(f"rms_norm: delta {tuple(delta.shape)}, {delta.stride()} does not fit x {tuple(x.shape)}")
    y = x.new_empty(x.shape)
    if x.numel():
        num_inner = x.shape[1] if x.dim() == 3 else 1
        block = triton.next_power_of_2(size)
        _rms_norm[(x.numel() // size,)](
            x, x if delta is None else delta, weight, y, num_inner, x.stride(0), x.stride(1) if x.dim() == 3 else 0,
            0 if delta is None else delta.stride(0), eps, size, block, delta is not None,
            num_warps=min(max(block // 512, 1), 8), **LAUNCH,
        )  # fmt: skip
    return y
