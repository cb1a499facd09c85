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
    """a [slots, rank, in], b [slots, rank, out]. packed: both as weights over all slots' ranks at once, when these are
    few. per_slot: both for each slot, where results must not depend on the other slots."""

    a: Tensor
    b: Tensor
    packed: Pair | None = field(repr=False)
    per_slot: tuple[Pair, ...] = field(default=(), repr=False)


def stack_adapters(a: Tensor, b: Tensor, *, per_slot: Sequence[tuple[Tensor, Tensor]] = ()) -> LoraStack:
    """Lower ranks are padded with zeros, and alpha / rank is already multiplied into b.

    per_slot: each slot's a [rank, in] and b [rank, out] at its own rank, for results in which a token's delta is the
    same to the last bit in any batch and beside any other adapters, at any cost.
    """
    if a.shape[:2] != b.shape[:2]:
        raise ValueError(f"stack_adapters: a {tuple(a.shape)} and b {tuple(b.shape)} differ in slots or rank")
    if per_slot:
        return LoraStack(a, b, None, tuple(_pack(*pair, is_deterministic=True) for pair in per_slot))
    num_ranks = a.shape[0] * a.shape[1]
    if num_ranks > _MAX_DENSE_RANKS or a.device.type != "cpu":
        return LoraStack(a, b, None)
    return LoraStack(a, b, _pack(a.reshape(num_ranks, -1), b.reshape(num_ranks, -1)))


def _pack(a: Tensor, b: Tensor, *, is_deterministic: bool = False) -> Pair:
    return pack(a, is_deterministic=is_deterministic), pack(b.T, is_deterministic=is_deterministic)
