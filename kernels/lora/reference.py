"""The truth: shrink and expand one adapter's rows at a time."""

from torch import Tensor

from kernels.lora.segments import LoraSegments


def add_lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, segments: LoraSegments) -> None:
    for slot, rows in zip(segments.slots.tolist(), segments.rows, strict=True):
        y.index_add_(0, rows, (x[rows] @ a[slot].T) @ b[slot])
