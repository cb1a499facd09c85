"""The deterministic path: one adapter's rows at a time, in products whose rows do not depend on each other."""

from torch import Tensor

from kernels.linear import linear
from kernels.lora.segments import LoraSegments
from kernels.lora.stack import LoraStack


def add_lora(y: Tensor, x: Tensor, stack: LoraStack, segments: LoraSegments) -> None:
    for slot, rows in segments.rows:
        shrink, expand = stack.per_slot[slot]
        y.index_add_(0, rows, linear(linear(x[rows], shrink), expand))
