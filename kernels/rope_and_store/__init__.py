"""The step between a layer's projection and its attention: rotates queries and keys, stores keys and values."""

from torch import Tensor

from kernels import gpu
from kernels.rope_and_store import reference


def rope_and_store(heads: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor) -> None:
    """Rotate the query heads in place; write the rotated keys and the values into their cache slots.

    heads [tokens, q_heads + 2 * kv_heads, head_dim], each token's heads dense, q, k, v in this order; the k heads are
    undefined afterwards. cache, slots as in `kernels.kv_store`; cos, sin [any, 1, head_dim]: the whole tables, sin
    signed as in `kernels.rope`; positions [tokens] int32: their rows; slots [tokens] int32, distinct. Positions and
    slots are not checked. Raises ValueError on any other mismatch.
    """
    num_tokens, num_heads, head_dim = heads.shape
    fits = (
        cache.dim() == 4
        and cache.shape[3] == head_dim == cos.shape[2]
        and cache.shape[2] % 2 == 0
        and num_heads > cache.shape[2]
        and cos.shape == sin.shape
        and positions.shape == slots.shape == (num_tokens,)
        and heads.dtype == cache.dtype == cos.dtype == sin.dtype
    )
    if not fits:
        raise ValueError(f"rope_and_store: heads {tuple(heads.shape)} do not fit cache {tuple(cache.shape)} or tables")
    if gpu.takes("rope_and_store", heads, cache):
        from kernels.rope_and_store import kernel

        kernel.rope_and_store(heads, cache, cos, sin, positions, slots)
    else:
        reference.rope_and_store(heads, cache, cos, sin, positions, slots)
