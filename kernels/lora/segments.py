"""Which tokens of a batch belong to which adapter slot, worked out once a step for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoraSegments:
    """rows: (slot, its tokens' row indices) for each slot in use; others [tokens, slots, 1]: True where the slot is
    not the token's."""

    rows: tuple[tuple[int, Tensor], ...]
    others: Tensor


def plan_lora(token_slots: Sequence[int], *, num_slots: int) -> LoraSegments | None:
    """token_slots: each token's adapter slot, -1 for none. None when no token uses an adapter."""
    used = sorted(set(token_slots) - {-1})
    if not used:
        return None
    by_token = torch.tensor(token_slots)
    others = by_token[:, None] != torch.arange(num_slots)
    return LoraSegments(tuple((slot, (by_token == slot).nonzero()[:, 0]) for slot in used), others[:, :, None])
