"""The CPU path in C++: panels of outputs, each read once for all rows of a step.

It beats oneDNN where a step has few rows, since it streams weights at the memory's speed and costs a microsecond a
call; and it sums a row in the same order whatever the number of rows.
"""

import torch
from torch import Tensor

from kernels.linear.packed import PackedWeight
from kernels.native import address, is_native, kind, library, num_threads

_UNIT_BYTES = 4


def is_supported(dtype: torch.dtype) -> bool:
    return is_native(torch.empty(0, dtype=dtype))


def can_pack(weight: Tensor) -> bool:
    return weight.shape[1] * weight.element_size() % _UNIT_BYTES == 0 and is_native(weight)


def pack(weight: Tensor) -> Tensor:
    """[panels, units of 4 bytes, outputs of a panel] int32."""
    native = library()
    assert native is not None
    out_size, in_size = weight.shape
    num_units, panel = in_size * weight.element_size() // _UNIT_BYTES, native.panel_size()
    packed = torch.empty((-(-out_size // panel), num_units, panel), dtype=torch.int32)
    weight = weight.contiguous()
    native.pack_weight(kind(weight.dtype), address(weight), out_size, in_size, address(packed), num_threads())
    return packed


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    native = library()
    assert native is not None
    y = x.new_empty((len(x), weight.out_size))
    native.linear(
        kind(x.dtype),
        address(x),
        address(weight.tensor),
        address(bias),
        address(y),
        len(x),
        weight.out_size,
        weight.in_size,
        num_threads(),
    )
    return y
