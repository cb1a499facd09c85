"""Which tokens of a batch belong to which adapter slot, worked out once a step for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LoraSegments:
    """slots [n]: the slots in use, ascending; rows: for each, its tokens' row indices; gate [tokens, n, 1]: 1 where
    the token uses that slot, else 0, in the model's dtype. Index tensors are int64."""

    slots: Tensor
    rows: tuple[Tensor, ...]
    gate: Tensor


def plan_lora(token_slots: Sequence[int], *, dtype: torch.dtype) -> LoraSegments | None:
    """token_slots: each token's adapter slot, -1 for none. None when no token uses an adapter."""
    by_token = torch.tensor(token_slots)
    slots = torch.tensor(sorted({slot for slot in token_slots if slot >= 0}), dtype=torch.int64)
    if not len(slots):
        return None
    uses = by_token[:, None] == slots
    return LoraSegments(slots, tuple(column.nonzero()[:, 0] for column in uses.T), uses.to(dtype)[:, :, None])
