"""Low-rank adapters of a mixed batch: each token gets the delta of its own adapter, or none."""

from torch import Tensor

from kernels.lora import by_rows, dense, deterministic
from kernels.lora.segments import LoraSegments, plan_lora
from kernels.lora.stack import LoraStack, stack_adapters

__all__ = ["LoraSegments", "LoraStack", "add_lora", "plan_lora", "stack_adapters"]


def add_lora(y: Tensor, x: Tensor, stack: LoraStack, segments: LoraSegments) -> None:
    """y += (x a^T) b of each token's adapter, in place; tokens without one are untouched.

    y [tokens, out]; x [tokens, in] contiguous; stack from `stack_adapters`; segments from `plan_lora`, made once a step
    for as many slots as the stack has. Raises ValueError on a mismatch.
    """
    num_slots, _, in_size = stack.a.shape
    if in_size != x.shape[1] or stack.b.shape[2] != y.shape[1] or segments.others.shape[1] != num_slots:
        raise ValueError(f"add_lora: a {tuple(stack.a.shape)}, b {tuple(stack.b.shape)} do not fit {tuple(x.shape)}")
    if stack.per_slot:
        deterministic.add_lora(y, x, stack, segments)
    elif stack.packed is not None:
        dense.add_lora(y, x, stack, segments)
    else:
        by_rows.add_lora(y, x, stack, segments)
