"""The CPU's own kernels, in C++: each operation's `native.h`, compiled to one library at first use.

They need an x86-64 processor with AVX2, better with AVX-512 and its bfloat16 instructions or with AMX, and a compiler.
If either is missing, the torch paths compute the same, more slowly.
"""

import ctypes
import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernels.native.build import BuildError, build
from kernels.native.isa import WrongInstructions

__all__ = [
    "WrongInstructions",
    "address",
    "is_native",
    "kind",
    "library",
    "max_threads",
    "mirrors",
    "num_threads",
    "set_num_threads",
]

log = logging.getLogger("tiergate.kernels")

_DTYPES = (torch.float32, torch.bfloat16)
_SIGNATURES = {
    # p: pointer, i: integer, f: float; see library.cpp.
    "panel_size": "",
    "pack_weight": "ipiipi",
    "linear": "ippppiiiii",
    "paged_attention": "ipippppi",
    "rms_norm": "ipippiiifi",
    "rope": "ipippiiii",
    "silu_mul": "ippiii",
    "sample": "piippi",
    "add_lora": "ippppiii",
    "run_layers": "ipppi",
}
_Struct = TypeVar("_Struct", bound=type[ctypes.Structure])
_structs: dict[str, type[ctypes.Structure]] = {}
_num_threads: int | None = None
_max_threads: int | None = None
"""None until set: as many threads as torch may use."""
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}


@functools.cache
def library() -> ctypes.CDLL | None:
    """None if this machine cannot have the library; the reason is logged once. Raises WrongInstructions."""
    try:
        path, isa = build()
        loaded = ctypes.CDLL(str(path))
        log.info("native kernels for %s", isa)
    except (BuildError, OSError) as error:
        log.warning("no native kernels, torch's slower ones are used: %s", " ".join(str(error).split())[:500])
        return None
    for name, signature in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = [_TYPES[letter] for letter in signature], ctypes.c_int64
        function.errcheck = _check_memory
    for name, struct in _structs.items():
        _check_layout(loaded, name, struct)
    return loaded


def mirrors(name: str) -> Callable[[_Struct], _Struct]:
    """Registers a copy of a library struct, field for field; the two layouts are compared once both are loaded."""

    def register(struct: _Struct) -> _Struct:
        _structs[name] = struct
        if library.cache_info().currsize and (loaded := library()) is not None:
            _check_layout(loaded, name, struct)
        return struct

    return register


def _check_layout(loaded: ctypes.CDLL, name: str, struct: type[ctypes.Structure]) -> None:
    fields = [field[0] for field in struct._fields_]
    expected = [ctypes.sizeof(struct), *(getattr(struct, field).offset for field in fields)]
    numbers = (ctypes.c_int64 * len(expected))()
    is_known = loaded.layout(name.encode(), numbers, len(expected))
    if not is_known or list(numbers) != expected:
        raise RuntimeError(f"{struct.__name__} is not laid out as the library's {name}: {expected}, {list(numbers)}")


def _check_memory(result: int, function: Any, arguments: tuple[Any, ...]) -> int:
    if not result:
        raise MemoryError(f"no memory for {function.__name__}")
    return result


def is_native(*tensors: Tensor) -> bool:
    """Whether the library computes on these, which must all be on the CPU and of one of its types."""
    return all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors) and library() is not None


def kind(dtype: torch.dtype) -> int:
    """The library's flag for one of its types."""
    return int(dtype == torch.bfloat16)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def set_num_threads(count: int, dtype: torch.dtype, *, most: int | None = None, is_deterministic: bool = False) -> None:
    """Set how many threads share an operation on that dtype: `count`, or `most`, if more, for one of milliseconds.

    Where the library runs, torch keeps to one thread: only small operations are left to it, and between them OpenMP's
    idle threads would spin on the cores that the library's own threads need. Torch also keeps to one thread if results
    must not depend on how it divides work, which it does by the size of a batch.
    """
    global _num_threads, _max_threads
    _num_threads, _max_threads = count, max(count, most or count)
    torch.set_num_threads(1 if is_deterministic or (dtype in _DTYPES and library() is not None) else count)


def num_threads() -> int:
    return _num_threads or torch.get_num_threads()


def max_threads() -> int:
    return _max_threads or torch.get_num_threads()
