"""A real PostgreSQL for tests, in a process of its own, if its binaries are installed."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

DEADLINE_S = 60


def find_binaries() -> Path | None:
    """The folder with `initdb`; Debian keeps it out of PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@contextmanager
def running_postgres(binaries: Path) -> Iterator[str]:
    """The URL of an empty database."""
    # PostgreSQL refuses to run as root.
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="tiergate-pg-"))
    if user is not None:
        shutil.chown(folder, user)
    port = free_port()
    cluster = folder / "cluster"
    initdb = [binaries / "initdb", "--pgdata", cluster, "--username", "tiergate", "--auth", "trust", "--no-sync"]
    subprocess.run(initdb, check=True, user=user, stdout=subprocess.DEVNULL, cwd=folder)
    options = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}", "-p", str(port), "-h", "127.0.0.1"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", cluster, *options], user=user, stdout=log, stderr=log, cwd=folder
        )
    try:
        ask = [binaries / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "tiergate", "postgres", "-c"]
        deadline = time.monotonic() + DEADLINE_S
        while subprocess.run([*ask, "CREATE DATABASE tiergate"], capture_output=True, check=False).returncode != 0:
            assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"postgresql://tiergate@127.0.0.1:{port}/tiergate"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)
