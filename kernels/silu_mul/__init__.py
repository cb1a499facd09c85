"""The gate of a gated MLP."""

from torch import Tensor

from kernels import gpu
from kernels.silu_mul import native, reference


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: gate_up [tokens, 2 * size], gate's columns first -> [tokens, size].

    Raises ValueError if the number of columns is odd.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"silu_mul: {tuple(gate_up.shape)} holds no gate and up of the same size")
    if gpu.takes("silu_mul", gate_up):
        from kernels.silu_mul import kernel

        return kernel.silu_mul(gate_up)
    return native.silu_mul(gate_up) if native.can_run(gate_up) else reference.silu_mul(gate_up)
