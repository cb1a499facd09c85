"""`tiergate up` for a benchmark: a separate process on a free port, which ends with the `with` block."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

READY_WITHIN_S = 300.0
STOPPED_WITHIN_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Platform:
    pid: int
    base_url: str
    """Includes `/v1`."""
    enterprise_key: str
    seconds_to_ready: float

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]


@contextmanager
def running_platform(data_dir: Path) -> Iterator[Platform]:
    ready_path = data_dir.with_suffix(".json")
    ready_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tiergate", "up", "--data-dir", str(data_dir), "--port", str(free_port())]
    started = time.perf_counter()
    # A session of its own: otherwise Ctrl-C would send it a second signal, which kills processes that are stopping.
    process = subprocess.Popen(
        [*command, "--json-ready", str(ready_path)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        await_file(ready_path, process, within_s=READY_WITHIN_S)
        seconds = time.perf_counter() - started
        ready = json.loads(ready_path.read_text())
        yield Platform(process.pid, ready["base_url"], ready["enterprise_key"], seconds)
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(STOPPED_WITHIN_S)


def await_file(path: Path, process: "subprocess.Popen[bytes]", *, within_s: float) -> None:
    """Wait until the process has written the file. Raises SystemExit if the process ends before or takes longer."""
    deadline = time.monotonic() + within_s
    while not path.exists():
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"{process.args} was not ready within {within_s:g} s")
        time.sleep(_POLL_S)


def end_on_sigterm() -> None:
    """Exit on SIGTERM as on Ctrl-C, so that `finally` runs and a benchmark under `timeout` leaves no server behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
