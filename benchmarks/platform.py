"""`tiergate up` for a benchmark: a process of its own on a free port, ended with the `with` block."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Platform:
    pid: int
    base_url: str
    """With `/v1`."""
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
    process = subprocess.Popen([*command, "--json-ready", str(ready_path)], stdout=subprocess.DEVNULL)
    try:
        while not ready_path.exists():
            if process.poll() is not None:
                raise SystemExit(f"up ended with {process.returncode}")
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        ready = json.loads(ready_path.read_text())
        yield Platform(process.pid, ready["base_url"], ready["enterprise_key"], seconds)
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
