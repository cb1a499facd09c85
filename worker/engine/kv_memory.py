"""The memory of the KV cache: its default size; promised when the engine is built, taken by `take`."""

import ctypes
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

_MADV_POPULATE_WRITE = 23
_PIECE_BYTES = 1 << 25
_USED_PART = 4
"""Requests rarely fill their windows, and never all at once: a quarter of their full windows serves as many."""
_FREE_PART = 4
"""The default takes a quarter of the machine's available memory at most, to leave some for others."""
_MOST_BYTES = 4 << 30
"""Nobody expects a process to take more of a CPU's memory unasked."""
_CGROUP = Path("/sys/fs/cgroup")


def default_bytes(window_bytes: int, *, num_seqs: int, available_bytes: int) -> int:
    """For num_seqs requests whose full windows take window_bytes each; at least one window, if that fits at all."""
    wanted = window_bytes * num_seqs // _USED_PART
    within = min(wanted, available_bytes // _FREE_PART, _MOST_BYTES)
    return max(within, min(window_bytes, available_bytes // 2))


def available_bytes() -> int:
    """The memory that this process could still get: the machine's available memory, or its container's if less."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, max(int(limit) - int(used), 0))


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no time to write; in huge pages, where the system has them."""
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def take(tensors: Iterable[Tensor]) -> None:
    """Take the memory of all pages that were never written. Contents stay as they are, even if written meanwhile.

    Works in pieces, since other threads of the process need its memory map, too. Linux before 5.14 refuses; there,
    memory is taken as it is written.
    """
    madvise = ctypes.CDLL(None).madvise
    for tensor in tensors:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for at in range(begin, end, _PIECE_BYTES):
            madvise(ctypes.c_void_p(at), ctypes.c_size_t(min(_PIECE_BYTES, end - at)), _MADV_POPULATE_WRITE)
