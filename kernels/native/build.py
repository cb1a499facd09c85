"""Compiling the library, once for each version of its sources, into the user's cache.

python -m kernels.native.build
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

_FLAGS = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-pthread"),
    "-fvisibility=hidden",
)
_TARGETS = {
    "avx512": (
        ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_bf16"),
        ("-march=x86-64-v4", "-mavx512bf16"),
    ),
    "avx2": (("avx2", "fma3", "f16c", "bmi2", "lzcnt"), ("-march=x86-64-v3",)),
}
"""Sets of instructions that there are kernels for, best first: what torch calls them, and the compiler's flags."""
ISA_VARIABLE = "TIERGATE_KERNELS_ISA"
_COMPILERS = ("c++", "g++", "clang++")
_KERNELS = Path(__file__).parent.parent
_LIMIT_S = 300


class BuildError(Exception):
    """Why there is no library."""


class WrongInstructions(ValueError):
    """The operator's choice cannot be had: one line naming the variable."""


def instruction_set() -> str:
    """What the kernels use: the best that this processor has, or what TIERGATE_KERNELS_ISA says.

    Raises BuildError where there are no kernels for this processor, and WrongInstructions.
    """
    chosen = os.environ.get(ISA_VARIABLE)
    if chosen:
        if chosen not in _TARGETS:
            raise WrongInstructions(f"{ISA_VARIABLE}: {chosen!r} is none of {', '.join(_TARGETS)}")
        if not _has(chosen):
            raise WrongInstructions(f"{ISA_VARIABLE}: this processor has no {chosen}; unset it for the best there is")
        return chosen
    best = next(filter(_has, _TARGETS), None)
    if best is None:
        raise BuildError("there are kernels for processors with AVX2 and for those with AVX-512, and this has neither")
    return best


def flags() -> tuple[str, ...]:
    """The compiler's. Raises as `instruction_set`."""
    return _FLAGS + _TARGETS[instruction_set()][1]


def _has(name: str) -> bool:
    capabilities = torch.cpu.get_capabilities()
    return all(capabilities.get(feature) for feature in _TARGETS[name][0])


def build() -> Path:
    """The library's path; compiles unless that was done before. Raises BuildError or OSError."""
    target = _cache_folder() / f"tiergate-kernels-{_version()}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            draft = Path(folder) / target.name
            _compile(draft)
            # Whole or not at all, whoever else compiles at the same time.
            draft.replace(target)
    return target


def _compile(target: Path) -> None:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler (looked for {', '.join(_COMPILERS)} and the variable CXX)")
    native = _KERNELS / "native"
    exported = f"-Wl,--version-script={native / 'exported.map'}"
    command = [*shlex.split(compiler), *flags(), exported, "-o", str(target), str(native / "library.cpp")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {_LIMIT_S} s") from error
    except OSError as error:
        raise BuildError(f"cannot run {compiler}: {error.strerror}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise BuildError(f"{compiler} failed: {first or f'exit status {done.returncode}'}")


def _version() -> str:
    """Names the sources and flags; any change compiles anew."""
    digest = hashlib.sha256(repr((flags(), os.environ.get("CXX"))).encode())
    patterns = ("*/native.h", "native/*.h", "native/*.cpp", "native/*.map")
    for path in sorted(path for pattern in patterns for path in _KERNELS.glob(pattern)):
        digest.update(f"{path.relative_to(_KERNELS)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiergate" / "kernels"
    except RuntimeError as error:
        # A container's user may have no name and no home.
        raise BuildError(f"nowhere to keep it: {error} Set XDG_CACHE_HOME.") from error


if __name__ == "__main__":
    print(build())  # noqa: T201
