"""Which operations run as Triton kernels: on which tensors, and with what the multiprocessors are to be filled."""

import functools
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("tiergate.kernels")

LAUNCH: dict[str, Any] = {"enable_fp_fusion": True}
"""Options of every launch. Triton 3.9 fuses no multiplications with additions unless it is told to, and warns."""

_H200_MULTIPROCESSORS = 132
_device_type = "cuda"
_stand_in_multiprocessors: int | None = None
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
    """Of the GPU in use; without one, those of an H200."""
    return _stand_in_multiprocessors or _count_multiprocessors()


@contextmanager
def played_by(device_type: str, *, multiprocessors: int) -> Iterator[None]:
    """Take tensors of that device for a GPU's of so many multiprocessors, as where a stand-in interprets kernels."""
    global _device_type, _stand_in_multiprocessors
    before = _device_type, _stand_in_multiprocessors
    _device_type, _stand_in_multiprocessors = device_type, multiprocessors
    refused_before = dict(_refused)
    try:
        yield
    finally:
        _device_type, _stand_in_multiprocessors = before
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
