"""The CPU path in C++: panels of outputs, each read once for all rows of a step.

It beats oneDNN for steps with few rows, since it streams weights at memory speed and costs a microsecond per call. It
also sums a row in the same order whatever the number of rows; in bfloat16 with AMX, only if that is requested.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.linear.packed import PackedWeight
from kernels.native import address, is_native, kind, library, num_threads

_UNIT_BYTES = 4


def is_supported(dtype: torch.dtype) -> bool:
    return is_native(torch.empty(0, dtype=dtype))


def can_pack(weight: Tensor) -> bool:
    return weight.shape[1] * weight.element_size() % _UNIT_BYTES == 0 and is_native(weight)


def pack(parts: Sequence[Tensor]) -> Tensor:
    """parts: [out, in] each, stacked by rows -> [panels, units of 4 bytes, outputs of a panel] int32."""
    native = library()
    assert native is not None
    panel = native.panel_size()
    if any(len(part) % panel for part in parts[:-1]):
        parts = [torch.cat(list(parts))]
    in_size = parts[0].shape[1]
    num_panels = sum(-(-len(part) // panel) for part in parts)
    num_units = in_size * parts[0].element_size() // _UNIT_BYTES
    packed = torch.empty((num_panels, num_units, panel), dtype=torch.int32)
    begin = 0
    for part in parts:
        weight, below = part.contiguous(), packed[begin:]
        native.pack_weight(kind(weight.dtype), address(weight), len(weight), in_size, address(below), num_threads())
        begin += len(weight) // panel
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
        weight.is_deterministic,
        num_threads(),
    )
    return y
