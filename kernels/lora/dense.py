"""The CPU path for few adapters: every adapter in the batch for every token, gated, in two matrix products.

A small model's step costs calls, not arithmetic; this needs a quarter of the reference's.
"""

from torch import Tensor

from kernels.lora.segments import LoraSegments


def add_lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, segments: LoraSegments) -> None:
    if len(segments.slots) != a.shape[0]:
        a, b = a.index_select(0, segments.slots), b.index_select(0, segments.slots)
    n, rank, _ = a.shape
    shrunk = x @ a.view(n * rank, -1).T
    # The gate's zeros silence the adapters that are not the token's.
    shrunk.view(-1, n, rank).mul_(segments.gate)
    y.addmm_(shrunk, b.view(n * rank, -1))
