"""The memory of adapters: pages of 16 rank columns, numbered alike in all projections of all layers."""

import ctypes
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.lora.plan import PAGE_RANKS


@dataclass(frozen=True, slots=True)
class LoraPages:
    """One projection's part of all pages. Its slices are the projections fused in it, in order: (q, k, v), (gate, up),
    or one.

    An adapter of rank r has ceil(r / 16) pages, at any places, the same in every projection. Rank column i of page p
    is, for slice s, the row a[p, s, i] and the part of the row b[p, i] that belongs to the slice's outputs; the scaling
    is multiplied into b. Only columns i < ranks[p, s] count: those beyond were never written and may be NaN, so they
    must not be read, or must be masked at once. ranks is 0 where the adapter leaves a slice alone.

    a [pages, slices, 16, in]; b [pages, 16, out]; ranks [pages, slices] int32; all contiguous, on one device.
    offsets [slices + 1]: slice s has the outputs offsets[s] .. offsets[s + 1] - 1.
    """

    a: Tensor = field(repr=False)
    b: Tensor = field(repr=False)
    ranks: Tensor = field(repr=False)
    offsets: tuple[int, ...]

    @property
    def num_slices(self) -> int:
        return len(self.offsets) - 1

    def write(self, page: int, part: int, a: Tensor, b: Tensor) -> None:
        """Put up to 16 rank columns of a slice into a page that no running step reads. a [ranks, in], b [ranks, out of
        the slice]. Raises ValueError on a mismatch."""
        begin, end = self.offsets[part : part + 2]
        if len(a) > PAGE_RANKS or a.shape != (len(b), self.a.shape[3]) or b.shape[1] != end - begin:
            raise ValueError(f"LoraPages: a {tuple(a.shape)}, b {tuple(b.shape)} do not fit slice {part} of {self}")
        self.a[page, part, : len(a)] = a
        self.b[page, : len(b), begin:end] = b
        self.ranks[page, part] = len(a)

    def clear(self, page: int) -> None:
        """Empty the page: none of its columns counts any more."""
        self.ranks[page] = 0

    def release(self, page: int) -> None:
        """Clear the page, and on a CPU give its memory back to the system, as if it had never been written."""
        self.clear(page)
        if self.a.device.type == "cpu" and hasattr(mmap, "MADV_DONTNEED"):
            for tensor in (self.a[page], self.b[page]):
                _give_back(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def empty_pages(
    num_pages: int, *, in_size: int, slice_sizes: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
) -> LoraPages:
    """Room for num_pages pages; on a CPU the system gives memory only to what is written."""
    offsets = [0]
    for size in slice_sizes:
        offsets.append(offsets[-1] + size)
    return LoraPages(
        a=_empty((num_pages, len(slice_sizes), PAGE_RANKS, in_size), dtype, device),
        b=_empty((num_pages, PAGE_RANKS, offsets[-1]), dtype, device),
        ranks=torch.zeros(num_pages, len(slice_sizes), dtype=torch.int32, device=device),
        offsets=tuple(offsets),
    )


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """On a CPU the tensor begins at a boundary of the system's pages, so that most rows consist of whole ones."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _give_back(begin: int, end: int) -> None:
    """Give back the system's pages that lie entirely between the addresses."""
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
