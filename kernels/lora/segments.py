"""Which tokens of a batch belong to which adapter slot, worked out once a step for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoraSegments:
    """rows: (slot, its tokens' row indices) for each slot in use; gate [tokens, slots, 1]: 1 where the token uses the
    slot, else 0, in the model's dtype."""

    rows: tuple[tuple[int, Tensor], ...]
    gate: Tensor


def plan_lora(token_slots: Sequence[int], *, num_slots: int, dtype: torch.dtype) -> LoraSegments | None:
    """token_slots: each token's adapter slot, -1 for none. None when no token uses an adapter."""
    used = sorted(set(token_slots) - {-1})
    if not used:
        return None
    by_token = torch.tensor(token_slots)
    gate = (by_token[:, None] == torch.arange(num_slots)).to(dtype)
    return LoraSegments(tuple((slot, (by_token == slot).nonzero()[:, 0]) for slot in used), gate[:, :, None])
