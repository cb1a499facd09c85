"""Which operations run as Triton kernels, on which tensors, and for how many multiprocessors."""

import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("tiergate.kernels")

LAUNCH: dict[str, Any] = {"enable_fp_fusion": True}
"""Options of every launch. Triton 3.9 fuses no multiplications with additions unless it is told to, and warns."""

_H200_MULTIPROCESSORS = 132
_device_type = "cuda"
_stand_in_multiprocessors: int | None = None
_is_careful = False
_refused: dict[str, str] = {}


def takes(operation: str, *tensors: Tensor) -> bool:
    """Whether the operation's Triton kernel computes on these; they must all be on the GPU."""
    on_gpu = all(t.device.type == _device_type for t in tensors)
    return on_gpu and operation not in _refused and _has_triton()


def is_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == _device_type


def refuse(operation: str, reason: str) -> None:
    """Leave the operation to torch from now on; the reason is logged once."""
    if operation not in _refused:
        log.warning("the Triton kernel of %s is not used, torch computes instead: %s", operation, reason)
        _refused[operation] = reason


def refused() -> dict[str, str]:
    """Operations left to torch, and why."""
    return dict(_refused)


def num_multiprocessors() -> int:
    """Multiprocessors of the GPU in use; without a GPU, of an H200."""
    return _stand_in_multiprocessors or _count_multiprocessors()


def has_large_shared_memory() -> bool:
    """Whether a block may have 163 KiB of shared memory and more, as in an A100 or H100; other GPUs have 99."""
    return _stand_in_multiprocessors is not None or _has_large_shared_memory()


def choose_ptxas() -> None:
    """Choose a ptxas that compiles prefill correctly; call before the first kernel is compiled.

    Prefill's probabilities are a register operand of wgmma, which ptxas before 13.3 miscompiles. Triton up to 3.8 ships
    an older ptxas; the wheel nvidia-cuda-nvcc has a suitable one. Without it, prefill is compiled in the one way that
    an older ptxas may get right, see `must_be_careful`, and its self-check tells whether it did.
    """
    global _is_careful
    if "TRITON_PTXAS_PATH" in os.environ or not _has_triton():
        return
    if tuple(map(int, version("triton").split(".")[:2])) >= (3, 9):
        return
    for found in Path(torch.__file__).parent.parent.glob("nvidia/cu1[3-9]/bin/ptxas"):
        os.environ["TRITON_PTXAS_PATH"] = str(found)
        return
    log.warning("ptxas before 13.3 may miscompile prefill, which runs in one stage; install nvidia-cuda-nvcc>=13.3")
    _is_careful = True


def must_be_careful() -> bool:
    """Whether ptxas may miscompile code that keeps an operand of wgmma in registers while the next one is loaded."""
    return _is_careful


def ptxas_version(capability: tuple[int, int]) -> tuple[int, int] | None:
    """The version of the ptxas that compiles kernels for a GPU of that capability; None without Triton."""
    if not _has_triton():
        return None
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = get_ptxas(10 * capability[0] + capability[1]).version.split(".")[:2]
    return int(major), int(minor)


@contextmanager
def played_by(device_type: str, *, multiprocessors: int, is_careful: bool = False) -> Iterator[None]:
    """Treat tensors of that device as those of a GPU with that many multiprocessors, as when a stand-in interprets
    kernels. is_careful: as with a ptxas before 13.3."""
    global _device_type, _stand_in_multiprocessors, _is_careful
    before = _device_type, _stand_in_multiprocessors, _is_careful
    _device_type, _stand_in_multiprocessors, _is_careful = device_type, multiprocessors, is_careful
    refused_before = dict(_refused)
    try:
        yield
    finally:
        _device_type, _stand_in_multiprocessors, _is_careful = before
        _refused.clear()
        _refused.update(refused_before)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _count_multiprocessors() -> int:
    if not torch.cuda.is_available():
        return _H200_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


@functools.cache
def _has_large_shared_memory() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() in ((8, 0), (9, 0), (10, 0), (10, 3))
