"""The truth, and the CPU path: gather a group's blocks, then torch's attention, fp32 inside.

Query heads that share a key head become query rows of that head, so that keys are never repeated in memory.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.paged_attention.plan import AttentionPlan, Group

_ROW_TILE = 32
"""torch takes query rows in tiles of 32 or multiples of it."""


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    outputs = [_attend(q, cache, group, scale) for group in plan.groups]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(q: Tensor, cache: Tensor, group: Group, scale: float) -> Tensor:
    n, m = group.num_seqs, group.query_len
    heads, head_dim = q.shape[1:]
    kv_heads = cache.shape[2] // 2
    shared = heads // kv_heads

    kv = cache.index_select(0, group.block_ids).view(n, -1, 2 * kv_heads, head_dim).transpose(1, 2)
    rows = q[group.start : group.start + n * m].view(n, m, kv_heads, shared, head_dim)
    # [n, kv_heads, shared * m, head_dim]: row s * m + i is new token i under the s-th query head of its key head.
    rows = rows.permute(0, 2, 3, 1, 4).reshape(n, kv_heads, shared * m, head_dim)
    mask = group.mask.expand(n, 1, shared, -1) if m == 1 else group.mask.repeat(1, 1, shared, 1)
    if rows.shape[2] % _ROW_TILE == 1:
        # torch sums a tile of a single row in another order; a copy of it keeps results independent of the chunking.
        rows, mask = (torch.cat((t, t[:, :, -1:]), dim=2) for t in (rows, mask))
    out = scaled_dot_product_attention(rows, kv[:, :kv_heads], kv[:, kv_heads:], mask, scale=scale)
    out = out[:, :, : shared * m]
    return out.reshape(n, kv_heads, shared, m, head_dim).permute(0, 3, 1, 2, 4).reshape(n * m, heads * head_dim)
