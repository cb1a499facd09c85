"""Attention of one new token of each sequence over its paged KV cache, on a GPU: split by a plan, then combined."""

from dataclasses import dataclass

from torch import Tensor

from kernels import gpu
from kernels.paged_decode import reference
from kernels.paged_decode.plan import DecodePlan, max_parts, part_size, plan_decode

__all__ = ["DecodePlan", "DecodeTables", "max_parts", "num_programs", "paged_decode", "part_size", "plan_decode"]

_PROGRAMS_EACH = 4
"""Blocks of the kernel that a multiprocessor runs at a time."""


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """A step's sequences on the GPU, all int32. context_lens [sequences]; blocks [sequences, any]; the rest as in
    `DecodePlan`, with room for `most_parts` items in items and in partial results."""

    context_lens: Tensor
    blocks: Tensor
    items: Tensor
    programs: Tensor
    parts: Tensor
    most_parts: int
    window: int | None


def num_programs(num_kv_heads: int) -> int:
    """Programs for each key head, so that all together fill the GPU once."""
    return max(gpu.num_multiprocessors() * _PROGRAMS_EACH // num_kv_heads, 1)


def paged_decode(q: Tensor, cache: Tensor, tables: DecodeTables, *, scale: float) -> Tensor:
    """softmax(scale * q k^T) v of each sequence's last token -> [sequences, heads * head_dim]; 0 without tokens.

    q [sequences, heads, head_dim], each row's heads dense; cache as in `kernels.kv_store`, the new tokens' keys and
    values stored already. A sequence's result is bit-identical in any batch, beside any padding. The launch depends on
    no length: a graph may replay it with other tables in the same place. Raises ValueError on a mismatch.
    """
    num_seqs, num_heads, head_dim = q.shape
    kv_heads = cache.shape[2] // 2
    fits = (
        num_heads % kv_heads == 0
        and cache.shape[3] == head_dim
        and q.dtype == cache.dtype
        and len(tables.context_lens) == len(tables.blocks) == len(tables.parts) - 1 == num_seqs
    )
    if not fits:
        raise ValueError(f"paged_decode: q {tuple(q.shape)} does not fit cache {tuple(cache.shape)} or the tables")
    if gpu.takes("paged_decode", q, cache):
        from kernels.paged_decode import kernel

        return kernel.paged_decode(q, cache, tables, scale=scale)
    return reference.paged_decode(q, cache, tables.blocks, tables.context_lens, scale=scale, window=tables.window)
