"""The CPU path in C++: blocks are read in place, and no sequence is padded to another's length."""

import ctypes

import torch
from torch import Tensor

from kernels.native import address, is_native, kind, library, max_threads, mirrors, num_threads
from kernels.paged_attention.plan import AttentionPlan

KEYS_AT_ONCE, _UNIT_BYTES = 64, 4


@mirrors("AttentionBatch")
class Batch(ctypes.Structure):
    _fields_ = (
        ("num_seqs", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("first_blocks", ctypes.c_void_p),
        ("block_ids", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        ("max_threads", ctypes.c_int64),
    )


@mirrors("AttentionShape")
class Shape(ctypes.Structure):
    _fields_ = (
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def batch_of(plan: AttentionPlan) -> Batch:
    """Points into the plan's tables, which must outlive it."""
    tables = plan.tables
    return Batch(
        len(tables.context_lens),
        address(tables.starts),
        address(tables.context_lens),
        address(tables.first_blocks),
        address(tables.block_ids),
        tables.window,
        max_threads(),
    )


def can_run(q: Tensor, cache: Tensor) -> bool:
    has_whole_units = q.shape[2] * q.element_size() % _UNIT_BYTES == 0
    fits = KEYS_AT_ONCE % cache.shape[1] == 0 and q.stride(1) == q.shape[2] and cache.is_contiguous()
    return has_whole_units and fits and q.dtype == cache.dtype and is_native(q, cache)


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    native = library()
    assert native is not None
    num_tokens, num_heads, head_dim = q.shape
    batch = batch_of(plan)
    shape = Shape(num_heads, cache.shape[2] // 2, head_dim, cache.shape[1], scale)
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=q.dtype)
    native.paged_attention(
        kind(q.dtype),
        address(q),
        q.stride(0),
        address(cache),
        address(out),
        ctypes.addressof(batch),
        ctypes.addressof(shape),
        num_threads(),
    )
    return out
