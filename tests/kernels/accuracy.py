"""How exact a kernel must be, and tensors in which whatever must not be read is NaN."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LIMITS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


def relative_error(value: Tensor, truth: Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm())


def assert_exact(value: Tensor, truth: Tensor, torchs: Tensor) -> None:
    """truth: in float64; torchs: the same computed by torch in value's dtype."""
    assert value.dtype == torchs.dtype and value.shape == truth.shape
    assert value.isfinite().all(), "NaN: an output was not written, or something was read that must not be"
    error, theirs = relative_error(value, truth), relative_error(torchs, truth)
    assert error <= LIMITS[value.dtype], f"error {error:.1e}"
    assert error <= max(2 * theirs, 4 * torch.finfo(value.dtype).eps ** 2), f"error {error:.1e}, torch's {theirs:.1e}"


def with_gaps(values: Tensor, *, gap: int = 3) -> Tensor:
    """The same with rows that stand apart by NaNs, and NaNs before and after."""
    rows, width = values.shape[0], values[0].numel()
    wide = torch.full((rows + 2, width + gap), float("nan"), dtype=values.dtype)
    wide[1:-1, :width] = values.reshape(rows, width)
    return wide[1:-1, :width].unflatten(1, values.shape[1:]) if values.dim() > 2 else wide[1:-1, :width]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
