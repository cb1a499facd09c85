"""The deterministic path without native kernels: in any batch and any chunk, a token's queries have the same place in
products of the same shape. Softmax in one pass over the keys (FlashAttention, Dao et al. 2022), in fp32."""

import torch
from torch import Tensor

from kernels.paged_attention.plan import NO_WINDOW, AttentionPlan

_ROWS, _KEYS = 16, 64
_LOWEST = -1e30
"""The score of a hidden key. Not an infinity, since the difference of two infinities is NaN."""


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    outputs, row = [], 0
    for query_len, context_len, table in zip(plan.query_lens, plan.context_lens, plan.block_tables, strict=True):
        rows = q[row : row + query_len].float() * scale
        kv = cache[torch.tensor(table[: -(-context_len // plan.block_size)])].flatten(0, 1)[:context_len].float()
        outputs.append(_attend(rows, kv, plan.window or NO_WINDOW))
        row += query_len
    return torch.cat(outputs).flatten(1).to(q.dtype)


def _attend(q: Tensor, kv: Tensor, window: int) -> Tensor:
    """q [new tokens, heads, head_dim], scaled; kv [tokens, 2 * kv_heads, head_dim], a copy, of the same sequence."""
    shared = q.shape[1] // (kv.shape[1] // 2)
    end = len(kv)
    begin = end - len(q)
    # Slots that no new token sees may hold another sequence's keys by now, or NaN.
    kv[: max(begin + 1 - window, 0)] = 0
    kv = torch.nn.functional.pad(kv, (0, 0, 0, 0, 0, -end % _KEYS)).transpose(0, 1)
    keys, values = (half.repeat_interleave(shared, dim=0) for half in kv.chunk(2))
    out = torch.empty_like(q)
    for first in range(begin // _ROWS * _ROWS, end, _ROWS):
        low, high = max(first, begin), min(first + _ROWS, end)
        tile = q.new_zeros((q.shape[1], _ROWS, q.shape[2]))
        tile[:, low - first : high - first] = q[low - begin : high - begin].transpose(0, 1)
        results = _attend_tile(tile, keys, values, first=first, end=high, window=window)
        out[low - begin : high - begin] = results[:, low - first : high - first].transpose(0, 1)
    return out


def _attend_tile(q: Tensor, keys: Tensor, values: Tensor, *, first: int, end: int, window: int) -> Tensor:
    """q [heads, 16, head_dim], the queries of positions `first` and on; keys, values [heads, length, head_dim].

    Processes blocks of keys from the first that any of the positions sees; hidden keys add exact zeros.
    """
    peak, total = q.new_full((*q.shape[:2], 1), _LOWEST), q.new_zeros((*q.shape[:2], 1))
    mixed = torch.zeros_like(q)
    at = torch.arange(first, first + _ROWS)[:, None]
    for begin in range(max(first + 1 - window, 0) // _KEYS * _KEYS, end, _KEYS):
        there = torch.arange(begin, begin + _KEYS)
        is_hidden = (there > at) | (there <= at - window)
        scores = (q @ keys[:, begin : begin + _KEYS].transpose(1, 2)).masked_fill(is_hidden, _LOWEST)
        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        weights, factor = (scores - new_peak).exp().masked_fill(is_hidden, 0), (peak - new_peak).exp()
        total = total * factor + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * factor + weights @ values[:, begin : begin + _KEYS]
        peak = new_peak
    return mixed / total
