"""The GPU, the software versions, and the GPU's measured limits."""

import platform
import statistics
import time
from collections.abc import Callable

import torch
import triton
from triton.backends.nvidia.compiler import get_ptxas

_FLUSH_BYTES = 1 << 28
"""More than any level-2 cache can hold."""


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    found["ptxas"] = get_ptxas(90).version
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
        found["cuda"] = str(torch.version.cuda)
    return found


def seconds(run: Callable[[], object], *, repeats: int = 20) -> float:
    """The median time on the GPU with a cold cache; without a GPU, the time of one run."""
    if not torch.cuda.is_available():
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    run()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def graph_seconds(run: Callable[[], object]) -> float:
    """As `seconds`, in a CUDA graph, without the time that the CPU needs to launch it."""
    if not torch.cuda.is_available():
        return seconds(run)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return seconds(graph.replay)


def copy_bytes_per_s() -> float:
    """Bytes read plus bytes written per second, in a large copy."""
    x = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / seconds(lambda: y.copy_(x))


def products_per_s() -> float:
    """Multiplications and additions per second, in a large matrix product in bfloat16."""
    size = 8192
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / seconds(lambda: x @ x)
