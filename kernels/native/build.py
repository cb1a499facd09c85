"""Compiles the library into the user's cache, once for each version of its sources.

python -m kernels.native.build
"""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kernels.native.isa import NoKernels, flags, instruction_sets

log = logging.getLogger("tiergate.kernels")

_FLAGS = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-pthread"),
    "-fvisibility=hidden",
)
_COMPILERS = ("c++", "g++", "clang++")
_KERNELS = Path(__file__).parent.parent
_LIMIT_S = 300


class BuildError(Exception):
    """Why there is no library."""


class CompilationError(BuildError):
    """The compiler ran and failed."""


class Built(NamedTuple):
    """A library and the instructions that it uses."""

    path: Path
    isa: str


def build() -> Built:
    """The library for the best instructions that the processor has, the system permits and the compiler knows; compiles
    it unless that was done before. Raises BuildError, OSError and WrongInstructions.
    """
    try:
        return build_first(instruction_sets())
    except NoKernels as error:
        raise BuildError(str(error)) from error


def build_first(candidates: Sequence[str]) -> Built:
    """Builds the first candidate that the compiler knows; logs why others failed. Raises BuildError and OSError."""
    for isa in candidates[:-1]:
        try:
            return Built(_build(isa), isa)
        except CompilationError as error:
            log.warning("no kernels for %s, the next best are used: %s", isa, " ".join(str(error).split())[:500])
    return Built(_build(candidates[-1]), candidates[-1])


def _build(isa: str) -> Path:
    target = _cache_folder() / f"tiergate-kernels-{_version(isa)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            draft = Path(folder) / target.name
            _compile(draft, isa)
            # Whole or not at all, even if another process compiles at the same time.
            draft.replace(target)
    return target


def _compile(target: Path, isa: str) -> None:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler (looked for {', '.join(_COMPILERS)} and the variable CXX)")
    native = _KERNELS / "native"
    exported = f"-Wl,--version-script={native / 'exported.map'}"
    command = [*shlex.split(compiler), *_FLAGS, *flags(isa), exported, "-o", str(target), str(native / "library.cpp")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {_LIMIT_S} s") from error
    except OSError as error:
        raise BuildError(f"cannot run {compiler}: {error.strerror}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise CompilationError(f"{compiler} failed: {first or f'exit status {done.returncode}'}")


def _version(isa: str) -> str:
    """Identifies the sources and flags; any change leads to a new compilation."""
    digest = hashlib.sha256(repr((_FLAGS, flags(isa), os.environ.get("CXX"))).encode())
    patterns = ("*/*.h", "native/*.cpp", "native/*.map")
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
    print(build().path)  # noqa: T201
