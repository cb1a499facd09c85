"""A Hopper that is not there: what is launched on CPU tensors is compiled for sm_90a, inspected, and interpreted.

As Triton's active device it takes every `kernel[grid](...)` of the program under test through Triton's own path:
specialised on the real arguments, compiled by the wheel's ptxas, held against the limit on shared memory. One launch
then says both, that the kernel compiles as it is called, and that its numbers are right.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from kernels import gpu
from tests.kernels.cubin import SHARED_LIMIT, Cubin, read_cubin
from tests.kernels.interpreting import interpret
from tests.kernels.memory_watch import watched

NUM_MULTIPROCESSORS = 5
"""Few, so that programs of a persistent grid have several items each, and interpreting takes less time."""


class Hopper:
    """The part of a Triton driver that launches need. launched: what was, since it was cleared."""

    def __init__(self) -> None:
        self.launched: list[Cubin] = []
        self.interprets = True
        self.recorder: Callable[[Callable[[], None]], None] | None = None
        self._cubins: dict[str, Cubin] = {}
        self.utils = SimpleNamespace(
            load_binary=lambda name, binary, shared, device: (0, 0, 0, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {
                "max_shared_mem": SHARED_LIMIT,
                "multiprocessor_count": NUM_MULTIPROCESSORS,
                "warpSize": 32,
            },
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return 9, 0

    def note(self, module: Any, function: Any, name: str, files: dict[str, str], key: str) -> None:
        """Triton's hook, called before a compiled kernel is loaded."""
        self._cubins[key] = read_cubin(files)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, *rest: Any) -> None:
            # Stream, function, packed metadata, launch metadata and two hooks stand before the arguments.
            args = rest[6:]
            self.launched.append(self._cubins[metadata.hash])

            def run() -> None:
                with watched(metadata.name, args):
                    interpret(source.fn, (x, y, z), args)

            if self.recorder is not None:
                # As a real capture, which computes nothing.
                self.recorder(run)
            elif self.interprets:
                run()

        return launch


@functools.cache
def the_hopper() -> Hopper:
    """Triton's active device from now on; one a process, since jitted functions keep what they were compiled to."""
    hopper = Hopper()
    triton.runtime.driver.set_active(hopper)
    triton.knobs.runtime.kernel_load_start_hook.add(hopper.note)
    return hopper


@contextmanager
def _outputs_filled() -> Iterator[None]:
    """What torch allocates without a value holds NaN, or the largest integer: a result that is not written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def on_hopper(*, interprets: bool = True) -> Iterator[Hopper]:
    """Kernels take CPU tensors. When it ends, nothing that was launched may have a fault. interprets: else compiled
    only, for shapes that would take long."""
    hopper = the_hopper()
    hopper.launched.clear()
    hopper.interprets = interprets
    with gpu.played_by("cpu", multiprocessors=NUM_MULTIPROCESSORS), _outputs_filled():
        yield hopper
    faults = sorted({fault for cubin in hopper.launched for fault in cubin.faults()})
    assert not faults, faults
