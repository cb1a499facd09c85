"""Causal attention of several new tokens of each sequence over its paged KV cache, on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kernels import gpu
from kernels.paged_prefill import reference
from kernels.paged_prefill.plan import plan_prefill, tile_rows

__all__ = ["PrefillTables", "paged_prefill", "plan_prefill", "tile_rows"]


@dataclass(frozen=True, slots=True)
class PrefillTables:
    """A step's chunks. query_lens, context_lens: the number of new tokens, and of all tokens, of each sequence; blocks
    [sequences, any] int32 and items [tiles, 5] int32, from `plan_prefill` with first_row 0, on the GPU. window: tokens
    attended to, counting the token itself."""

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    blocks: Tensor
    items: Tensor
    window: int | None


def paged_prefill(q: Tensor, cache: Tensor, tables: PrefillTables, *, scale: float) -> Tensor:
    """softmax(scale * q k^T) v of each token over its sequence's tokens up to itself -> [tokens, heads * head_dim].

    q [tokens, heads, head_dim], each row's heads dense; cache as in `kernels.kv_store`, with the new keys and values
    stored already. A token's result is bit-identical in any batch and in any chunk of its prompt.
    Raises ValueError on a mismatch.
    """
    num_tokens, num_heads, head_dim = q.shape
    kv_heads = cache.shape[2] // 2
    fits = (
        num_heads % kv_heads == 0
        and cache.shape[3] == head_dim
        and q.dtype == cache.dtype
        and num_tokens == sum(tables.query_lens)
        and len(tables.blocks) == len(tables.context_lens)
    )
    if not fits:
        raise ValueError(f"paged_prefill: q {tuple(q.shape)} does not fit cache {tuple(cache.shape)} or the tables")
    if gpu.takes("paged_prefill", q, cache):
        from kernels.paged_prefill import kernel

        return kernel.paged_prefill(q, cache, tables, scale=scale)
    return reference.paged_prefill(
        q, cache, tables.blocks, tables.query_lens, tables.context_lens, scale=scale, window=tables.window
    )
