"""A weight in the layout of whoever multiplies with it."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedWeight:
    tensor: Tensor = field(repr=False)
    out_size: int
    in_size: int
    is_onednn: bool
