"""Writes new keys and values into the paged cache.

A layer's cache is [num_blocks, block_size, 2 * kv_heads, head_dim]: each slot has the keys' heads, then the values'.
One tensor, because keys and values are always written, gathered and freed together.
"""

from torch import Tensor

from kernels.kv_store import reference


def store_kv(kv: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write the new tokens' keys and values into their cache slots, in place.

    kv [tokens, 2 * kv_heads, head_dim]; cache as above, same dtype, contiguous; slots [tokens] int64, distinct,
    block_id * block_size + offset. Raises ValueError on a mismatch; the slots' range is not checked.
    """
    if kv.shape[1:] != cache.shape[2:] or slots.shape != kv.shape[:1]:
        raise ValueError(
            f"store_kv: kv {tuple(kv.shape)} and slots {tuple(slots.shape)} do not fit {tuple(cache.shape)}"
        )
    reference.store_kv(kv, cache, slots)
