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

_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=x86-64-v4",
    "-mavx512bf16",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-pthread",
)
_COMPILERS = ("c++", "g++", "clang++")
_KERNELS = Path(__file__).parent.parent
_LIMIT_S = 300


class BuildError(Exception):
    """Why there is no library."""


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
    command = [*shlex.split(compiler), *_FLAGS, "-o", str(target), str(_KERNELS / "native" / "library.cpp")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {_LIMIT_S} s") from error
    except OSError as error:
        raise BuildError(f"cannot run {compiler}: {error.strerror}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise BuildError(f"{compiler} failed: {first}")


def _version() -> str:
    """Names the sources and flags; any change compiles anew."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for path in sorted([*_KERNELS.glob("*/native.h"), *_KERNELS.glob("native/*.h"), *_KERNELS.glob("native/*.cpp")]):
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
