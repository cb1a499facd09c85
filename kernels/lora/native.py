"""The CPU path in C++: see native.h."""

import ctypes

from torch import Tensor

from kernels.lora.pages import LoraPages
from kernels.lora.plan import LoraPlan
from kernels.native import address, is_native, kind, library, mirrors, num_threads

_UNIT_BYTES, _MAX_SLICES = 4, 3


@mirrors("LoraWork")
class Work(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "pages", "shrink", "expand")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_shrink", "num_expand", "num_places")),
    )


@mirrors("LoraMatrix")
class Matrix(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "ranks")),
        ("num_slices", ctypes.c_int64),
        ("offsets", ctypes.c_int64 * (_MAX_SLICES + 1)),
    )


def can_add(pages: LoraPages) -> bool:
    has_whole_units = pages.a.shape[3] * pages.a.element_size() % _UNIT_BYTES == 0
    return has_whole_units and pages.num_slices <= _MAX_SLICES and is_native(pages.a)


def work_of(plan: LoraPlan | None) -> Work:
    """Points into the plan's memory."""
    if plan is None:
        return Work()
    return Work(
        address(plan.rows),
        address(plan.pages),
        address(plan.shrink),
        address(plan.expand),
        len(plan.rows),
        len(plan.shrink),
        len(plan.expand),
        plan.num_places,
    )


def matrix_of(pages: LoraPages | None) -> Matrix:
    """Points into the pages' memory."""
    if pages is None:
        return Matrix()
    offsets = (ctypes.c_int64 * (_MAX_SLICES + 1))(*pages.offsets)
    return Matrix(address(pages.a), address(pages.b), address(pages.ranks), pages.num_slices, offsets)


def add_lora(y: Tensor, x: Tensor, pages: LoraPages, plan: LoraPlan) -> None:
    native = library()
    assert native is not None
    work, matrix = work_of(plan), matrix_of(pages)
    native.add_lora(
        kind(x.dtype),
        ctypes.addressof(work),
        ctypes.addressof(matrix),
        address(x),
        address(y),
        x.shape[1],
        y.shape[1],
        num_threads(),
    )
