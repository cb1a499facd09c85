"""The truth, and torch's path: the single operations."""

from torch import Tensor

from kernels.kv_store.reference import store_kv
from kernels.rope.reference import rope


def rope_and_store(heads: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor) -> None:
    num_kv = cache.shape[2]
    num_queries, num_rotated = heads.shape[1] - num_kv, heads.shape[1] - num_kv // 2
    at = positions.long()
    rope(heads[:, :num_rotated], cos.index_select(0, at), sin.index_select(0, at))
    store_kv(heads[:, num_queries:], cache, slots.long())
