"""Paged caches for tests, and attention over them in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.accuracy import generator

BLOCK = 16


@dataclass(frozen=True)
class Cache:
    """tensor [blocks, 16, 2 * kv_heads, head_dim]: NaN in all slots that no token of a sequence may see. blocks
    [sequences, most blocks] int32, filled up with a block that must not be read."""

    tensor: Tensor
    blocks: Tensor
    lens: tuple[int, ...]


def make_cache(
    lens: Sequence[int],
    *,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    visible_from: Sequence[int] | None = None,
    seed: int = 0,
) -> Cache:
    """visible_from: of each sequence, the first token that anything may see."""
    random = generator(seed)
    counts = [-(-length // BLOCK) for length in lens]
    tensor = torch.full((sum(counts) + 1, BLOCK, 2 * kv_heads, head_dim), float("nan"), dtype=dtype)
    order = torch.randperm(sum(counts), generator=random) + 1
    blocks = torch.zeros(len(lens), max(counts) + 1, dtype=torch.int32)
    begin = 0
    for i, (length, count) in enumerate(zip(lens, counts, strict=True)):
        ids = order[begin : begin + count]
        blocks[i, :count] = ids
        flat = torch.full((count * BLOCK, 2 * kv_heads, head_dim), float("nan"), dtype=dtype)
        # The same for a sequence of that length in any batch.
        values = torch.randn(length, 2 * kv_heads, head_dim, generator=generator(length)).to(dtype)
        first = visible_from[i] if visible_from else 0
        flat[first:length] = values[first:]
        tensor[ids] = flat.view(count, BLOCK, 2 * kv_heads, head_dim)
        begin += count
    return Cache(tensor, blocks, tuple(lens))


def attend(q: Tensor, cache: Cache, sequence: int, first: int, *, window: int | None = None) -> Tensor:
    """Of the queries [tokens, heads, head_dim] of positions `first` and on -> [tokens, heads * head_dim], float64."""
    num_tokens, num_heads, head_dim = q.shape
    length = cache.lens[sequence]
    flat = cache.tensor[cache.blocks[sequence].long()].flatten(0, 1)[:length].double().nan_to_num()
    kv_heads = flat.shape[1] // 2
    keys, values = (half.repeat_interleave(num_heads // kv_heads, dim=1) for half in flat.chunk(2, dim=1))
    scores = torch.einsum("thd,nhd->htn", q.double(), keys) * head_dim**-0.5
    at = first + torch.arange(num_tokens)[:, None]
    token = torch.arange(length)[None]
    hidden = token > at
    if window is not None:
        hidden |= token <= at - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("htn,nhd->thd", weights, values).flatten(1)
