"""The CPU path for few adapters: two packed matrix products for all adapters and tokens, with a mask between them.

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
    # A mask and no multiplication with 0, which would turn another adapter's infinities into NaN.
    shrunk.view(len(x), segments.others.shape[1], -1).masked_fill_(segments.others, 0)
    y.add_(linear(shrunk, expand))
