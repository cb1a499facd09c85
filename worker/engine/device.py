"""Where the model computes, and how much memory is left there for the KV cache."""

from typing import Literal

import torch

from kernels import gpu
from worker.engine.settings import EngineSettings

_LEFT_FREE = 0.1
"""Of a GPU's memory after the weights: a step's own tensors, the graphs' pool, and cuBLAS."""


class DeviceError(Exception):
    """A GPU that cannot serve: one line naming the reason."""


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> str:
    """cpu or cuda. Raises DeviceError where a GPU is wanted and there is none that can be used."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise DeviceError("--device cuda: torch finds no GPU; its driver may be missing or too old for this torch")
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        name = torch.cuda.get_device_name()
        if wanted == "auto":
            return "cpu"
        raise DeviceError(f"--device cuda: {name} is of compute capability {major}.{minor}, at least 8.0 is needed")
    gpu.choose_ptxas()
    return "cuda"


def kv_bytes(settings: EngineSettings, device: str) -> int:
    """For the KV cache: what is set, or on a GPU what the weights have left."""
    if device != "cuda":
        return settings.kv_memory_bytes
    free, total = torch.cuda.mem_get_info()
    return max(int(free - _LEFT_FREE * total), 0)
