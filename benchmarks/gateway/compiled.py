"""Compiles the benchmark's C programs, once for each version of their sources, into the user's cache."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
_COMPILERS = ("cc", "gcc", "clang")
_LIMIT_S = 120


def compiled(program: str) -> Path:
    """The path of `upstream` or `load`. Raises SystemExit if it cannot be compiled."""
    target = _cache_folder() / f"{program}-{_version()}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            draft = Path(folder) / target.name
            _compile(_SOURCES / f"{program}.c", draft)
            # Atomic, even if another process compiles at the same time.
            draft.replace(target)
    return target


def _compile(source: Path, target: Path) -> None:
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise SystemExit(
            f"no C compiler (looked for {', '.join(_COMPILERS)} and the variable CC): install one, for example with "
            "`apt-get install gcc`; load and upstream in Python would measure themselves"
        )
    command = [*shlex.split(compiler), *_FLAGS, "-o", str(target), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"cannot run {compiler}: {error}") from error
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")


def _version() -> str:
    """A digest of sources and flags, so that any change recompiles."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiergate" / "benchmarks"
