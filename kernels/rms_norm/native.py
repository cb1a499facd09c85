"""The CPU path in C++: one pass for the mean, one for the result."""

import torch
from torch import Tensor

from kernels.native import address, is_native, kind, library, num_threads


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether x consists of rows, or of rows of dense heads."""
    is_dense = x.stride(-1) == 1 and weight.is_contiguous() and (x.dim() < 3 or x.stride(1) == x.shape[2])
    return x.dim() in (2, 3) and is_dense and x.dtype == weight.dtype and is_native(x, weight)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    native = library()
    assert native is not None
    out = torch.empty(x.shape, dtype=x.dtype)
    num_inner = x.shape[1] if x.dim() == 3 else 1
    native.rms_norm(
        kind(x.dtype),
        address(x),
        x.stride(0),
        address(weight),
        address(out),
        len(x),
        num_inner,
        x.shape[-1],
        eps,
        num_threads(),
    )
    return out
