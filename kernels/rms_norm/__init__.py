"""Root-mean-square normalisation over the last dimension."""

from torch import Tensor

from kernels.rms_norm import native, reference


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, computed in fp32, in a new tensor of x's dtype.

    x [..., size], any strides; weight [size], same dtype. Raises ValueError on a shape mismatch.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    compute = native.rms_norm if native.can_run(x, weight) else reference.rms_norm
    return compute(x, weight, eps=eps)
