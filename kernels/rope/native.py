"""The CPU path in C++."""

from torch import Tensor

from kernels.native import address, is_native, kind, library, num_threads


def can_run(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    is_dense = x.stride(1) == x.shape[2] and cos.is_contiguous() and sin.is_contiguous()
    return is_dense and x.dtype == cos.dtype == sin.dtype and is_native(x, cos, sin)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    native = library()
    assert native is not None
    num_tokens, num_heads, head_dim = x.shape
    native.rope(
        kind(x.dtype),
        address(x),
        x.stride(0),
        address(cos),
        address(sin),
        num_tokens,
        num_heads,
        head_dim,
        num_threads(),
    )
