"""The truth, and torch's path: one sequence after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def paged_prefill(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `kernels.paged_prefill`; hidden slots may be NaN."""
    kv_heads, block_size = cache.shape[2] // 2, cache.shape[1]
    outs, row = [], 0
    for i, (num_new, length) in enumerate(zip(query_lens, context_lens, strict=True)):
        at = torch.arange(length - num_new, length, device=q.device)[:, None]
        token = torch.arange(length, device=q.device)[None]
        seen = token <= at
        if window is not None:
            seen &= token > at - window
        kv = cache[blocks[i, : -(-length // block_size)].long()].flatten(0, 1)[:length]
        kv = kv.masked_fill(~seen.any(dim=0)[:, None, None], 0).transpose(0, 1)
        keys, values = (each.repeat_interleave(q.shape[1] // kv_heads, dim=0) for each in kv.split(kv_heads))
        rows = q[row : row + num_new].transpose(0, 1)
        mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, float("-inf"))
        out = scaled_dot_product_attention(rows[None], keys[None], values[None], mask, scale=scale)
        outs.append(out[0].transpose(0, 1).flatten(1))
        row += num_new
    return torch.cat(outs) if outs else q.new_empty((0, q.shape[1] * q.shape[2]))
