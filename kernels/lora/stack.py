"""All resident adapters of one projection, stacked by slot."""

from dataclasses import dataclass, field

from torch import Tensor

from kernels.linear import PackedWeight, pack

_MAX_DENSE_RANKS = 256
"""Above this many rank rows, computing every adapter for every token costs more than gathering rows."""


@dataclass(frozen=True, slots=True)
class LoraStack:
    """a [slots, rank, in], b [slots, rank, out]; packed: both as weights over all slots' ranks at once, when few."""

    a: Tensor
    b: Tensor
    packed: tuple[PackedWeight, PackedWeight] | None = field(repr=False)


def stack_adapters(a: Tensor, b: Tensor) -> LoraStack:
    """Lower ranks are padded with zeros, and alpha / rank is already multiplied into b."""
    if a.shape[:2] != b.shape[:2]:
        raise ValueError(f"stack_adapters: a {tuple(a.shape)} and b {tuple(b.shape)} differ in slots or rank")
    num_ranks = a.shape[0] * a.shape[1]
    if num_ranks > _MAX_DENSE_RANKS or a.device.type != "cpu":
        return LoraStack(a, b, None)
    return LoraStack(a, b, (pack(a.reshape(num_ranks, -1)), pack(b.reshape(num_ranks, -1).T)))
