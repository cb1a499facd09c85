"""The CPU path in C++: a row's draw without sorting it, rows shared by threads."""

import ctypes

import torch
from torch import Tensor

from kernels.native import address, is_native, library, max_threads, mirrors, num_threads

_LONG = 500_000
"""From this many logits on, more threads pay, even in a step whose other operations do not need them."""


@mirrors("SamplingParameters")
class _Parameters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("temperature", "top_k", "top_p", "min_p", "uniform"))


def can_run(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.is_contiguous() and is_native(logits)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    native = library()
    assert native is not None
    num_rows, vocab = logits.shape
    parameters = _Parameters(*map(address, (temperature, top_k, top_p, min_p, uniform)))
    ids = torch.empty(num_rows, dtype=torch.int64)
    threads = max_threads() if logits.numel() >= _LONG else num_threads()
    native.sample(address(logits), num_rows, vocab, ctypes.addressof(parameters), address(ids), threads)
    return ids
