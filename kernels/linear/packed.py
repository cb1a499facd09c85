"""A weight in the layout that its product needs."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """dtype: of the numbers, which `tensor` may hold as another type. is_deterministic: as in `pack`."""

    tensor: Tensor = field(repr=False)
    out_size: int
    in_size: int
    dtype: torch.dtype
    layout: Literal["native", "onednn", "plain", "tiles"]
    is_deterministic: bool = False
