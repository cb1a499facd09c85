"""The data directory: private, and used by one `up` at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.private_folder import make_private
from tiergate.failure import Failure


@contextmanager
def owned(data_dir: Path) -> Iterator[Path]:
    """Create `data_dir` or make it private, lock it, and yield its absolute path.

    Raises Failure if it cannot be written, belongs to another user or is in use.
    """
    path = data_dir.absolute()
    try:
        make_private(path)
        fd = os.open(path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failure(f"--data-dir {data_dir} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Failure(f"another `tiergate up` is running on {data_dir}; stop it or give another --data-dir") from None
    try:
        yield path
    finally:
        os.close(fd)


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` atomically and durably by a file that only its owner can read."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
