"""The truth, and the path without native kernels: gather a group's blocks, then torch's attention, fp32 inside."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.paged_attention.plan import AttentionPlan, Group

_ROW_TILE, _MIN_ROWS = 32, 4
"""torch takes query rows in tiles of 32 or multiples of it. In float32, MKL sums fewer than 4 rows in another order;
with such a tile padded, a token has the same bits alone, in a chunk and in a whole prompt."""


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    outputs = [_attend(q, cache, group, scale) for group in plan.groups]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(q: Tensor, cache: Tensor, group: Group, scale: float) -> Tensor:
    n, m = group.num_seqs, group.query_len
    heads, head_dim = q.shape[1:]
    kv_heads = cache.shape[2] // 2
    rows = q[group.start : group.start + n * m]
    kv = cache.index_select(0, group.block_ids).flatten(0, 1).index_fill_(0, group.hidden, 0)
    kv = kv.view(n, -1, 2 * kv_heads, head_dim).transpose(1, 2)
    keys, values = kv[:, :kv_heads], kv[:, kv_heads:]
    if m == 1:
        # Query heads that share a key head become its query rows: no key is repeated in memory.
        out = _softmax_product(rows.view(n, kv_heads, -1, head_dim), keys, values, group.mask, scale)
        return out.reshape(n, heads * head_dim)
    if heads != kv_heads:
        keys, values = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (keys, values))
    out = _softmax_product(rows.view(n, m, heads, head_dim).transpose(1, 2), keys, values, group.mask, scale)
    return out.transpose(1, 2).reshape(n * m, heads * head_dim)


def _softmax_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """q [n, heads, rows, head_dim]; k, v [n, heads, length, head_dim]; mask as in `Group`."""
    num_rows = q.shape[2]
    tail = num_rows % _ROW_TILE
    if q.dtype == torch.float32 and 0 < tail < _MIN_ROWS:
        q = _repeat_last_row(q, _MIN_ROWS - tail)
        if mask is not None and mask.shape[2] > 1:
            mask = _repeat_last_row(mask, _MIN_ROWS - tail)
    if mask is None:
        # Keys keep their whole blocks, since lengths that are no multiple of 16 are summed in another order, too.
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[:, :, :num_rows]
    mask = mask.expand(-1, 1, q.shape[2], -1)
    return scaled_dot_product_attention(q, k, v, mask, scale=scale)[:, :, :num_rows]


def _repeat_last_row(x: Tensor, count: int) -> Tensor:
    return torch.cat((x, x[:, :, -1:].expand(-1, -1, count, -1)), dim=2)
