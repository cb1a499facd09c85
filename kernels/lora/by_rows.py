"""Shrink and expand one adapter's rows at a time."""

from torch import Tensor

from kernels.lora.segments import LoraSegments
from kernels.lora.stack import LoraStack


def add_lora(y: Tensor, x: Tensor, stack: LoraStack, segments: LoraSegments) -> None:
    for slot, rows in segments.rows:
        y.index_add_(0, rows, (x[rows] @ stack.a[slot].T) @ stack.b[slot])
