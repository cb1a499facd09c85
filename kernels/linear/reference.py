"""The truth, and the path wherever weights cannot be packed."""

import torch
from torch import Tensor

_TILE = 16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def linear_by_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies in tiles of one shape, since torch sums a row among 16 in another order than a row alone."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % _TILE))
    return torch.cat([linear(tile, weight, bias) for tile in padded.split(_TILE)])[: len(x)]
