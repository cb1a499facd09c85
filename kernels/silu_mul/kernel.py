"""The GPU path: one program for each block of columns of a row."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

_BLOCK = 1024


@triton.jit
def _silu_mul(gate_up, y, stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    gate = tl.load(gate_up + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + size + at, mask=mask, other=0.0).to(tl.float32)
    gated = (gate / (1 + tl.exp(-gate))).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row * size + at, (gated * up).to(y.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    if gate_up.stride(1) != 1:
        raise ValueError(f"silu_mul: no kernel for strides {gate_up.stride()}")
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty((num_rows, size))
    if y.numel():
        grid = (num_rows, triton.cdiv(size, _BLOCK))
        _silu_mul[grid](gate_up, y, gate_up.stride(0), size, _BLOCK, num_warps=4, **LAUNCH)
    return y
