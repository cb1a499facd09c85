"""Every address that a launch touches lies in one of its tensors, and no program touches what another one writes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from triton.runtime import interpreter

_Builder = interpreter.InterpreterBuilder
_Addresses = NDArray[np.uint64]


class MemoryFault(AssertionError):
    pass


@contextmanager
def watched(name: str, args: Sequence[Any]) -> Iterator[None]:
    """Raise MemoryFault for the interpreted launch inside. Two programs that write one address are a race even where
    both write the same value; atomics are not watched."""
    touched = _Touched(name, [arg for arg in args if isinstance(arg, torch.Tensor)])
    load, store = _Builder.create_masked_load, _Builder.create_masked_store

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        touched.note(touched.reads, self.grid_idx, pointers, mask)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        touched.note(touched.writes, self.grid_idx, pointers, mask)
        return store(self, pointers, value, mask, *rest)

    _Builder.create_masked_load, _Builder.create_masked_store = watched_load, watched_store
    try:
        yield
    finally:
        _Builder.create_masked_load, _Builder.create_masked_store = load, store
    touched.check_races()


class _Touched:
    """Addresses of the elements that each program read and wrote."""

    def __init__(self, name: str, tensors: list[torch.Tensor]) -> None:
        self._name = name
        spans = sorted((s.data_ptr(), s.data_ptr() + s.nbytes()) for s in (t.untyped_storage() for t in tensors))
        self._starts = np.array([start for start, _ in spans], np.uint64)
        self._ends = np.maximum.accumulate(np.array([end for _, end in spans], np.uint64))
        self.reads: list[tuple[tuple[int, int, int], _Addresses]] = []
        self.writes: list[tuple[tuple[int, int, int], _Addresses]] = []

    def note(self, into: list[Any], program: tuple[int, int, int], pointers: Any, mask: Any) -> None:
        addresses = pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)]
        if not addresses.size:
            return
        size = np.uint64(pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = addresses.min(), addresses.max() + size
        # Mostly all lie in one tensor; else each is looked up.
        span = int(np.searchsorted(self._starts, low, side="right")) - 1
        if span < 0 or high > self._ends[span]:
            spans = np.searchsorted(self._starts, addresses, side="right").astype(np.int64) - 1
            if (spans < 0).any() or (addresses + size > self._ends[spans]).any():
                verb = "reads" if into is self.reads else "writes"
                raise MemoryFault(f"{self._name}: program {program} {verb} outside of its tensors")
        into.append((program, addresses))

    def check_races(self) -> None:
        if not self.writes:
            return
        numbers = {program: i for i, program in enumerate(dict.fromkeys(p for p, _ in self.writes + self.reads))}
        programs = list(numbers)
        addresses, owners = _distinct(self.writes, numbers)
        twice = np.flatnonzero(addresses[1:] == addresses[:-1])
        if twice.size:
            first, second = (programs[owners[twice[0] + i]] for i in (0, 1))
            raise MemoryFault(f"{self._name}: programs {first} and {second} both write {addresses[twice[0]]:#x}")
        read, readers = _distinct(self.reads, numbers)
        at = np.searchsorted(addresses, read).clip(max=len(addresses) - 1)
        stale = np.flatnonzero((addresses[at] == read) & (owners[at] != readers))
        if stale.size:
            reader, writer = programs[readers[stale[0]]], programs[owners[at[stale[0]]]]
            raise MemoryFault(f"{self._name}: program {reader} reads what program {writer} writes")


def _distinct(touches: list[Any], numbers: dict[Any, int]) -> tuple[_Addresses, NDArray[np.int64]]:
    """The distinct pairs of an address and a program's number, by address."""
    if not touches:
        return np.array([], np.uint64), np.array([], np.int64)
    addresses = np.concatenate([each for _, each in touches])
    owners = np.repeat([numbers[program] for program, _ in touches], [len(each) for _, each in touches])
    order = np.lexsort((owners, addresses))
    addresses, owners = addresses[order], owners[order]
    is_new = np.ones(len(addresses), bool)
    is_new[1:] = (addresses[1:] != addresses[:-1]) | (owners[1:] != owners[:-1])
    return addresses[is_new], owners[is_new]
