"""Third-party clients, installed for a test into a folder of its own."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_CACHE = Path(__file__).parents[2] / ".cache"


def install(command: Sequence[str | Path], folder: Path, *, deadline_s: float = 170) -> None:
    """Run an install command. Without the program or the registry the test is skipped; in CI it fails."""
    if shutil.which(command[0]) is None:
        _cannot(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=deadline_s)
    if done.returncode:
        _cannot(f"could not install the client: {done.stderr[-300:]}")


def npm_install(folder: Path) -> None:
    """Install the dependencies in `folder`'s package.json."""
    install(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], folder)


def kept_package(name: str, version: str) -> Path:
    """The `node_modules` folder with this package, which is fetched once per checkout."""
    folder = _CACHE / f"{name}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # npm writes .package-lock.json last.
        if not (folder / "node_modules" / ".package-lock.json").exists():
            (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": {name: version}}))
            npm_install(folder)
    return folder / "node_modules"


def _cannot(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
