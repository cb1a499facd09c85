"""The device that the model computes on: which one, whether it can serve, and its memory for the KV cache."""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from kernels import gpu
from worker.engine import kv_memory
from worker.engine.settings import EngineSettings

log = logging.getLogger("tiergate.engine")

_LEFT_FREE = 0.1
"""Share of a GPU's memory left free after the weights, for a step's own tensors, the graphs' pool, and cuBLAS."""
_CROWDED = 0.05
"""Share of a GPU's memory that may be in use before this process takes any; more means another process."""
_GIB = 1 << 30


class DeviceError(Exception):
    """A GPU that cannot serve: one line naming the reason."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPU as it is before anything runs there. driver_cuda: the newest CUDA version that the driver serves; ptxas:
    the version of the ptxas that compiles the kernels, None without Triton."""

    name: str
    capability: tuple[int, int]
    driver_cuda: tuple[int, int]
    ptxas: tuple[int, int] | None
    free_bytes: int
    total_bytes: int


def objection(state: GpuState) -> str | None:
    """Why this GPU cannot serve; None if it can."""
    major, minor = state.capability
    if major < 8:
        return f"{state.name} is of compute capability {major}.{minor}, at least 8.0 is needed"
    if state.ptxas is not None and state.driver_cuda[0] < state.ptxas[0]:
        # Within one major version, drivers load the output of newer compilers.
        return (
            f"the driver of {state.name} serves CUDA {_dotted(state.driver_cuda)} and is too old for the kernels of "
            f"ptxas {_dotted(state.ptxas)}: update the driver, or name an older ptxas in TRITON_PTXAS_PATH"
        )
    return None


def crowding(state: GpuState) -> str | None:
    """A message saying that other processes hold memory of the GPU; None if they do not."""
    taken = state.total_bytes - state.free_bytes
    if taken <= _CROWDED * state.total_bytes:
        return None
    return f"other processes hold {_gib(taken)} of the {_gib(state.total_bytes)} GiB of {state.name}"


def lack_of_memory(state: GpuState, weight_bytes: int) -> str | None:
    """Why the weights do not fit; None if they do."""
    if weight_bytes <= state.free_bytes:
        return None
    others = crowding(state)
    reason = f"its weights take {_gib(weight_bytes)} GiB, {_gib(state.free_bytes)} GiB of the GPU are free"
    return reason if others is None else f"{reason}: {others}"


def find_gpu() -> GpuState | None:
    """None if torch finds no GPU."""
    if not torch.cuda.is_available():
        return None
    gpu.choose_ptxas()
    return read_state()


def choose_device(
    wanted: Literal["auto", "cpu", "cuda"], *, find: Callable[[], GpuState | None] = find_gpu
) -> Literal["cpu", "cuda"]:
    """Raises DeviceError if a GPU is required and none can be used."""
    if wanted == "cpu":
        return "cpu"
    state = find()
    if state is None and wanted == "auto":
        return "cpu"
    if state is None:
        raise DeviceError("--device cuda: torch finds no GPU; its driver may be missing or too old for this torch")
    reason = objection(state)
    if reason is None:
        return "cuda"
    if wanted == "cuda":
        raise DeviceError(f"--device cuda: {reason}")
    log.warning("the CPU computes, not the GPU: %s", reason)
    return "cpu"


def read_state(*, memory: Callable[[], tuple[int, int]] = torch.cuda.mem_get_info) -> GpuState:
    """The state of the GPU in use. memory: returns free and total bytes. Raises DeviceError if the driver grants none,
    as when another process has exclusive use of the GPU."""
    try:
        free, total = memory()
    except RuntimeError as error:
        raise DeviceError(f"the GPU cannot be used: {' '.join(str(error).split())[:200]}") from error
    capability = torch.cuda.get_device_capability()
    return GpuState(
        name=torch.cuda.get_device_name(),
        capability=capability,
        driver_cuda=_driver_cuda(),
        ptxas=gpu.ptxas_version(capability),
        free_bytes=free,
        total_bytes=total,
    )


def check_memory(state: GpuState, weight_bytes: int) -> None:
    """Call before the weights are read. Raises DeviceError if they do not fit; warns if other processes hold memory."""
    lack, others = lack_of_memory(state, weight_bytes), crowding(state)
    if lack is not None:
        raise DeviceError(lack)
    if others is not None:
        log.warning("%s", others)


def kv_bytes(settings: EngineSettings, state: GpuState | None, *, window_bytes: int) -> int:
    """Bytes for the KV cache, of which a full window takes window_bytes. On a GPU, what the weights leave; on a CPU
    (state None), the configured size, or a default that fits the model and the machine."""
    if state is None:
        return settings.kv_memory_bytes or kv_memory.default_bytes(
            window_bytes, num_seqs=settings.max_num_seqs, available_bytes=kv_memory.available_bytes()
        )
    return max(int(state.free_bytes - _LEFT_FREE * state.total_bytes), 0)


def _driver_cuda() -> tuple[int, int]:
    found = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    return found.value // 1000, found.value % 1000 // 10


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f}"
