"""All resident adapters of one projection, stacked by slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kernels.linear import PackedWeight, pack

_MAX_DENSE_RANKS = 256
"""Above this many rank rows, computing every adapter for every token costs more than gathering rows."""


Pair = tuple[PackedWeight, PackedWeight]


@dataclass(frozen=True, slots=True)
class LoraStack:
    """a [slots, rank, in], b [slots, rank, out]; packed: both as weights over all slots' ranks at once, when few;
    slots: both of each slot, where results must not depend on the others."""

    a: Tensor
    b: Tensor
    packed: Pair | None = field(repr=False)
    slots: tuple[Pair, ...] = field(default=(), repr=False)


def stack_adapters(a: Tensor, b: Tensor, *, apart: Sequence[tuple[Tensor, Tensor]] = ()) -> LoraStack:
    """Lower ranks are padded with zeros, and alpha / rank is already multiplied into b.

    apart: each slot's a [rank, in] and b [rank, out] at its own rank, where a token's delta shall not depend on its
    batch or on other adapters by a bit, whatever that costs.
    """
    if a.shape[:2] != b.shape[:2]:
        raise ValueError(f"stack_adapters: a {tuple(a.shape)} and b {tuple(b.shape)} differ in slots or rank")
    if apart:
        return LoraStack(a, b, None, tuple(_pack(*pair, is_deterministic=True) for pair in apart))
    num_ranks = a.shape[0] * a.shape[1]
    if num_ranks > _MAX_DENSE_RANKS or a.device.type != "cpu":
        return LoraStack(a, b, None)
    return LoraStack(a, b, _pack(a.reshape(num_ranks, -1), b.reshape(num_ranks, -1)))


def _pack(a: Tensor, b: Tensor, *, is_deterministic: bool = False) -> Pair:
    return pack(a, is_deterministic=is_deterministic), pack(b.T, is_deterministic=is_deterministic)
