"""The CPU path for few adapters: every resident adapter for every token, gated, in two packed matrix products.

A small model's step costs calls, not arithmetic, and products of a fixed shape give a token the same bits in any batch.
"""

from torch import Tensor

from kernels.linear import linear
from kernels.lora.segments import LoraSegments
from kernels.lora.stack import LoraStack


def add_lora(y: Tensor, x: Tensor, stack: LoraStack, segments: LoraSegments) -> None:
    assert stack.packed is not None
    shrink, expand = stack.packed
    shrunk = linear(x, shrink)
    # The gate's zeros silence the adapters that are not the token's.
    shrunk.view(len(x), segments.gate.shape[1], -1).mul_(segments.gate)
    y.add_(linear(shrunk, expand))
