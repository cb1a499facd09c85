"""Rotary position embedding, in the half-split form of Hugging Face's Llama."""

from torch import Tensor

from kernels.rope import native, reference


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate every head of x by its token's position, in place.

    x [tokens, heads, head_dim], last dimension dense; cos and sin [tokens, 1, head_dim] of x's dtype: the tables'
    rows at the tokens' positions, sin's first half negated (`signed_sin` below). Raises ValueError on a mismatch.
    """
    if cos.shape != sin.shape or cos.shape != (x.shape[0], 1, x.shape[2]):
        raise ValueError(f"rope: cos {tuple(cos.shape)}, sin {tuple(sin.shape)} do not fit x {tuple(x.shape)}")
    rotate = native.rope if native.can_run(x, cos, sin) else reference.rope
    rotate(x, cos, sin)


def signed_sin(sin: Tensor) -> Tensor:
    """sin [..., head_dim / 2] -> [-sin, sin] [..., head_dim]: the sign of the half-split rotation, folded in once."""
    return reference.signed_sin(sin)
