"""The truth, and the path without native kernels: torch's fused operation does its arithmetic in fp32."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    if x.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    # Half types are rounded once before the weight is applied, as Llama was trained.
    normed = torch.nn.functional.rms_norm(x.float(), weight.shape, None, eps)
    return normed.to(x.dtype) * weight
