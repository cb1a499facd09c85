"""Matrix products with weights that are packed once, at load."""

import torch
from torch import Tensor

from kernels import gpu
from kernels.linear import native, onednn, reference
from kernels.linear.packed import PackedWeight

__all__ = ["PackedWeight", "linear", "pack"]


def pack(*parts: Tensor, is_deterministic: bool = False) -> PackedWeight:
    """parts: [out, in] each, stacked by rows and rearranged for `linear`; the originals may be freed.

    is_deterministic: a row's result is bit-identical among any number of rows, at any cost.
    Raises ValueError if the parts' in sizes or dtypes differ.
    """
    if len({(part.shape[1], part.dtype) for part in parts}) > 1:
        raise ValueError(f"pack: {[(tuple(part.shape), part.dtype) for part in parts]} do not fit below each other")
    out_size, in_size, dtype = sum(map(len, parts)), parts[0].shape[1], parts[0].dtype
    if gpu.is_gpu(parts[0]):
        return PackedWeight(parts[0] if len(parts) == 1 else torch.cat(parts), out_size, in_size, dtype, "plain")
    if native.can_pack(parts[0]):
        return PackedWeight(native.pack(parts), out_size, in_size, dtype, "native", is_deterministic)
    weight = parts[0] if len(parts) == 1 else torch.cat(parts)
    # In bfloat16, oneDNN may choose its product by the number of rows, at least on processors with AMX.
    if onednn.can_pack(weight) and not (is_deterministic and dtype != torch.float32):
        return PackedWeight(onednn.pack(weight), out_size, in_size, dtype, "onednn")
    return PackedWeight(weight, out_size, in_size, dtype, "tiles" if is_deterministic else "plain")


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x [tokens, in] contiguous -> [tokens, out], of x's dtype.

    A row's result is bit-identical among any number of rows if the weight is packed by our own kernel (except in
    bfloat16 with AMX), by oneDNN in float32, or to be deterministic.
    Raises ValueError on a shape or dtype mismatch.
    """
    if x.shape[1] != weight.in_size or x.dtype != weight.dtype or not x.is_contiguous():
        raise ValueError(f"linear: x {tuple(x.shape)} {x.dtype} does not fit {weight}")
    if bias is not None and (bias.shape != (weight.out_size,) or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"linear: bias {tuple(bias.shape)} {bias.dtype} does not fit {weight}")
    if weight.layout == "native":
        return native.linear(x, weight, bias)
    if weight.layout == "onednn":
        return onednn.linear(x, weight.tensor, bias)
    if weight.layout == "tiles":
        return reference.linear_by_tiles(x, weight.tensor, bias)
    return reference.linear(x, weight.tensor, bias)


def is_fast(dtype: torch.dtype) -> bool:
    """Whether this machine multiplies matrices of that dtype at least about as fast as float32."""
    return dtype == torch.float32 or onednn.is_supported(dtype) or native.is_supported(dtype)
