"""Root-mean-square normalisation over the last dimension."""

from torch import Tensor

from kernels import gpu
from kernels.rms_norm import native, reference


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, computed in fp32, in a new tensor of x's dtype.

    x [..., size], with any strides, on a GPU with dense rows; weight [size], same dtype. Raises ValueError on a shape
    mismatch.
    """
    _check(x, weight)
    if gpu.takes("rms_norm", x, weight):
        from kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps=eps)
    compute = native.rms_norm if native.can_run(x, weight) else reference.rms_norm
    return compute(x, weight, eps=eps)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Adds delta to x, in place, and returns the `rms_norm` of the sum. x, delta [rows, size], rows dense."""
    _check(x, weight)
    if gpu.takes("rms_norm", x, delta, weight):
        from kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps=eps, delta=delta)
    return rms_norm(x.add_(delta), weight, eps=eps)


def _check(x: Tensor, weight: Tensor) -> None:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
