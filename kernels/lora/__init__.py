"""Low-rank adapters of a mixed batch: each token gets the delta of its own adapter, or none.

All resident adapters of one projection are stacked by slot: a [slots, rank, in], b [slots, rank, out]. Lower ranks are
padded with zeros, and alpha / rank is already multiplied into b.
"""

from torch import Tensor

from kernels.lora import dense, reference
from kernels.lora.segments import LoraSegments, plan_lora

__all__ = ["LoraSegments", "add_lora", "plan_lora"]

_MAX_DENSE_RANK = 256
"""Above this many rank rows in a batch, computing every adapter for every token costs more than gathering rows."""


def add_lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, segments: LoraSegments) -> None:
    """y += (x a^T) b of each token's adapter, in place; tokens without one are untouched.

    y [tokens, out] contiguous; x [tokens, in]; a, b as above, one dtype; segments from `plan_lora`, made once a step.
    Raises ValueError on a shape mismatch.
    """
    if a.shape[:2] != b.shape[:2] or a.shape[2] != x.shape[1] or b.shape[2] != y.shape[1]:
        raise ValueError(f"add_lora: a {tuple(a.shape)}, b {tuple(b.shape)} do not fit {tuple(x.shape)}")
    path = dense if len(segments.rows) * a.shape[1] <= _MAX_DENSE_RANK else reference
    path.add_lora(y, x, a, b, segments)
