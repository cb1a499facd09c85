"""The truth, and torch's path: each sequence's blocks gathered, then torch's attention."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def paged_decode(
    q: Tensor, cache: Tensor, tables: Tensor, context_lens: Tensor, *, scale: float, window: int | None
) -> Tensor:
    """As `kernels.paged_decode`, for all sequences in one product; hidden slots may be NaN."""
    num_seqs, num_heads, head_dim = q.shape
    kv_heads, block_size = cache.shape[2] // 2, cache.shape[1]
    at = torch.arange(tables.shape[1] * block_size, device=q.device)[None]
    seen = at < context_lens[:, None]
    if window is not None:
        seen &= at >= context_lens[:, None] - window
    # Tables may end in stale entries; a block without visible tokens may be any.
    tables = tables.long().where(seen.view(num_seqs, -1, block_size).any(dim=2), 0)
    kv = cache[tables].flatten(1, 2).masked_fill(~seen[:, :, None, None], 0).transpose(1, 2)
    mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, float("-inf"))
    rows = q.reshape(num_seqs, kv_heads, num_heads // kv_heads, head_dim)
    out = scaled_dot_product_attention(
        rows, kv[:, :kv_heads], kv[:, kv_heads:], mask[:, None, None].expand(-1, 1, rows.shape[2], -1), scale=scale
    )
    return out.reshape(num_seqs, num_heads * head_dim).masked_fill(~seen.any(dim=1)[:, None], 0)
