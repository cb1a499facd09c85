"""Outbox folders on disk: DATA_DIR/outbox/<incarnation>/, each owned by the process with the flock on its `owner.lock`.

A lock dies with its process, so a free lock means that nobody will write to the folder again. Folders are taken and
removed only under a second flock (`outbox/.registry`), so that no process takes a folder between its creation and its
locking, or holds a folder that another process has just removed.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OWNER = "owner.lock"
_REGISTRY = ".registry"


class OwnedFolder:
    """A folder whose lock this process holds until `release` or `remove`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    def release(self) -> None:
        os.close(self._lock_fd)

    def remove(self) -> None:
        """Delete the folder with its contents and release the lock."""
        with _registry(self.path.parent):
            shutil.rmtree(self.path)
            os.close(self._lock_fd)


def outbox_root(data_dir: Path) -> Path:
    return data_dir / "outbox"


def restoring_folder(data_dir: Path) -> Path:
    """Where `tiergate restore` places outboxes that no consumer may see yet. Only an interrupted restore leaves it."""
    return data_dir / "restoring"


def create_folder(data_dir: Path, incarnation: str) -> OwnedFolder:
    """Create and lock a new folder, durably."""
    root = outbox_root(data_dir)
    root.mkdir(parents=True, exist_ok=True)
    path = root / incarnation
    with _registry(root):
        path.mkdir()
        lock_fd = _try_lock(path / _OWNER)
        assert lock_fd is not None
        _sync_directory(root)
    return OwnedFolder(path, lock_fd)


def list_folders(data_dir: Path) -> list[Path]:
    """Every outbox folder, oldest incarnation first."""
    root = outbox_root(data_dir)
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def take_orphan(path: Path) -> OwnedFolder | None:
    """The locked folder if its owner is dead; None if the owner is alive or the folder is gone."""
    with _registry(path.parent):
        if not path.is_dir():
            return None
        lock_fd = _try_lock(path / _OWNER)
    return None if lock_fd is None else OwnedFolder(path, lock_fd)


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextmanager
def _registry(root: Path) -> Iterator[None]:
    fd = os.open(root / _REGISTRY, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
