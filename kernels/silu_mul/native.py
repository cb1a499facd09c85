"""The CPU path in C++."""

from torch import Tensor

from kernels.native import address, is_native, kind, library, num_threads


def can_run(gate_up: Tensor) -> bool:
    return gate_up.is_contiguous() and is_native(gate_up)


def silu_mul(gate_up: Tensor) -> Tensor:
    native = library()
    assert native is not None
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((num_rows, size))
    native.silu_mul(kind(gate_up.dtype), address(gate_up), address(out), num_rows, size, num_threads())
    return out
