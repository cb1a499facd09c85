"""The memory of the KV cache: promised when the engine is made, taken by `take`."""

import ctypes
import math
import mmap
from collections.abc import Iterable

import torch
from torch import Tensor

_MADV_POPULATE_WRITE = 23
_PIECE_BYTES = 1 << 25


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost no time; in huge pages, where the system has them."""
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def take(tensors: Iterable[Tensor]) -> None:
    """Take the memory of all that was never written, and leave the content as it is, whoever writes meanwhile.

    In pieces, since others of the process need its memory map, too. Linux before 5.14 refuses; there, memory is taken
    as it is written.
    """
    madvise = ctypes.CDLL(None).madvise
    for tensor in tensors:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for at in range(begin, end, _PIECE_BYTES):
            madvise(ctypes.c_void_p(at), ctypes.c_size_t(min(_PIECE_BYTES, end - at)), _MADV_POPULATE_WRITE)
