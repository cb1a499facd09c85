"""A CUDA graph that is not there: records what a function does to tensors, and replays that without the function.

Kernels of Triton compute in replays only. What a real capture forbids raises here: a value read back, a shape that
depends on values, a tensor made of Python numbers. What a real graph freezes is frozen: addresses, and Python's
numbers. Before a replay all memory that was made during the capture is poisoned, so that whatever is read before this
replay wrote it shows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.kernels.hopper import the_hopper

_POISON = -7
_aten = torch.ops.aten
_WAITING = {
    getattr(_aten, name)
    for name in (
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"),
        *("lift_fresh", "lift_fresh_copy", "unique_dim", "bincount"),
    )
    if hasattr(_aten, name)
}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_}
# Repeated, they would put other garbage over the poison.
_GARBAGE = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
# Of a CPU tensor these do not reach the dispatcher.
_READS = ("tolist", "numpy", "cpu")


class CaptureError(RuntimeError):
    pass


class PretendGraph:
    """As the graphs of `worker.engine.graphs`: capture once, replay often."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._made: list[Tensor] = []

    def capture(self, function: Callable[[], object]) -> None:
        recorder = _Recorder(self._steps, self._made)
        hopper = the_hopper()
        hopper.recorder = self._steps.append
        try:
            with torch.inference_mode(), _reads_refused(), recorder:
                function()
        finally:
            hopper.recorder = None

    def replay(self) -> None:
        with torch.inference_mode():
            for tensor in self._made:
                tensor.fill_(float("nan") if tensor.is_floating_point() else _POISON)
            for step in self._steps:
                step()


class _Recorder(TorchDispatchMode):
    def __init__(self, steps: list[Callable[[], None]], made: list[Tensor]) -> None:
        super().__init__()
        self._steps, self._made = steps, made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        by_mask = func.overloadpacket in _INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func.overloadpacket in _WAITING or by_mask:
            raise CaptureError(f"{func} in a graph waits for the device or reads the host's memory")
        result = func(*args, **kwargs)
        given = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        results = tree_leaves(result)
        new = [i for i, t in enumerate(results) if isinstance(t, Tensor) and _storage(t) not in given]
        self._made += [results[i] for i in new]
        if (new or func._schema.is_mutable) and func.overloadpacket not in _GARBAGE:
            self._steps.append(lambda: _repeat(func, args, kwargs, {i: results[i] for i in new}))
        return result


def _repeat(func: Any, args: Any, kwargs: Any, into: dict[int, Tensor]) -> None:
    again = tree_leaves(func(*args, **kwargs))
    for i, tensor in into.items():
        tensor.copy_(again[i])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _reads_refused() -> Iterator[None]:
    originals = {name: getattr(Tensor, name) for name in _READS}
    for name in _READS:
        setattr(Tensor, name, _refusal(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Tensor, name, original)


def _refusal(name: str) -> Callable[..., None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise CaptureError(f"Tensor.{name} in a graph waits for the device")

    return refuse
