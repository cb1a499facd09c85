"""Which instructions the kernels use: what the processor has, the system permits and the operator wants."""

import ctypes
import errno
import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

log = logging.getLogger("tiergate.kernels")

ISA_VARIABLE = "TIERGATE_KERNELS_ISA"
EMULATED = "emulated-amx"
"""For tests without AMX: the kernels for AMX with its tiles in plain C++; slow, and never chosen automatically."""

_SYS_ARCH_PRCTL = 158
_ARCH_GET_XCOMP_SUPP, _ARCH_REQ_XCOMP_PERM = 0x1021, 0x1023
_XFEATURE_XTILECFG, _XFEATURE_XTILEDATA = 17, 18


class Target(NamedTuple):
    """features: by torch's names; flags: the compiler's."""

    features: tuple[str, ...]
    flags: tuple[str, ...]


_AVX2 = Target(("avx2", "fma3", "f16c", "bmi2", "lzcnt"), ("-march=x86-64-v3",))
_AVX512 = Target(
    ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_bf16"),
    ("-march=x86-64-v4", "-mavx512bf16"),
)
_AMX = Target((*_AVX512.features, "amx_tile", "amx_bf16"), (*_AVX512.flags, "-mamx-tile", "-mamx-bf16"))
TARGETS = {"amx": _AMX, "avx512": _AVX512, "avx2": _AVX2}
"""Instruction sets that there are kernels for, best first."""
_EMULATED_TARGET = Target(_AVX2.features, (*_AVX2.flags, "-DTIERGATE_EMULATED_TILES"))


class NoKernels(Exception):
    """This processor has none of the instructions."""


class TilesRefused(Exception):
    """Why the system does not let this process use AMX."""


class WrongInstructions(ValueError):
    """The operator's choice is not available: one line naming the variable."""


def instruction_sets() -> tuple[str, ...]:
    """Instruction sets that may be used here, best first, or the one that TIERGATE_KERNELS_ISA names.

    Raises NoKernels and WrongInstructions.
    """
    return choose(os.environ.get(ISA_VARIABLE), torch.cpu.get_capabilities(), request_tiles)


def choose(
    wanted: str | None, capabilities: Mapping[str, object], request_tiles: Callable[[], None]
) -> tuple[str, ...]:
    """As `instruction_sets`, by the processor's capabilities; request_tiles raises TilesRefused."""

    def has(target: Target) -> bool:
        return all(capabilities.get(feature) for feature in target.features)

    if wanted == EMULATED and has(_EMULATED_TARGET):
        return (EMULATED,)
    if wanted and wanted not in TARGETS:
        raise WrongInstructions(f"{ISA_VARIABLE}: {wanted!r} is none of {', '.join(TARGETS)}")
    if wanted and not has(TARGETS[wanted]):
        raise WrongInstructions(f"{ISA_VARIABLE}: this processor has no {wanted}; unset it for the best there is")
    found = tuple(filter(None, [wanted])) or tuple(name for name, target in TARGETS.items() if has(target))
    if not found:
        raise NoKernels("there are kernels for processors with AVX2, AVX-512 or AMX, and this has none of them")
    if found[0] == "amx":
        try:
            request_tiles()
        except TilesRefused as reason:
            if wanted:
                raise WrongInstructions(f"{ISA_VARIABLE}: no amx: {reason}") from reason
            log.warning("the processor has AMX, but %s: the kernels for AVX-512 are used", reason)
            return found[1:]
    return found


def flags(isa: str) -> tuple[str, ...]:
    """The compiler's flags for an instruction set."""
    return (_EMULATED_TARGET if isa == EMULATED else TARGETS[isa]).flags


def request_tiles() -> None:
    """Asks Linux for the state of AMX's tiles, which a process gets only on request, for all its threads.

    The system's answer includes whether it has enabled the state in XCR0, which XGETBV would tell.
    Raises TilesRefused.
    """
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError, TypeError) as error:
        raise TilesRefused("only Linux is asked for it") from error
    supported = ctypes.c_uint64()
    arguments = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP))
    if syscall(*arguments, ctypes.byref(supported)) != 0:
        raise TilesRefused(f"this system knows nothing of it ({os.strerror(ctypes.get_errno())})")
    state = 1 << _XFEATURE_XTILECFG | 1 << _XFEATURE_XTILEDATA
    if supported.value & state != state:
        raise TilesRefused("this system does not keep its state")
    if syscall(*map(ctypes.c_long, (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))) != 0:
        number = ctypes.get_errno()
        stack = ": a thread's stack for signals is too small" if number == errno.ENOSPC else ""
        raise TilesRefused(f"the system refuses it ({os.strerror(number)}{stack})")
