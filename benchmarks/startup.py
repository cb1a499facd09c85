"""`tiergate up`: seconds from start to ready, and the memory of all its processes when idle.

    python -m benchmarks.startup [--runs 3]

Memory is the proportional set size (PSS), in which pages that processes share are counted once.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        seconds = [_run(Path(folder) / "data", is_last=i == runs) for i in range(runs + 1)]
    print(f"first start (new data directory): {seconds[0]:.1f} s")
    print(f"later starts: median {statistics.median(seconds[1:]):.1f} s of {runs}")


def _run(data_dir: Path, *, is_last: bool) -> float:
    ready_path = data_dir.with_suffix(".json")
    ready_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tiergate", "up", "--data-dir", str(data_dir), "--port", str(_free_port())]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--json-ready", str(ready_path)], stdout=subprocess.DEVNULL)
    try:
        while not ready_path.exists():
            if process.poll() is not None:
                raise SystemExit(f"up ended with {process.returncode}")
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        if is_last:
            time.sleep(5)
            _print_memory(process.pid)
        return seconds
    finally:
        process.terminate()
        process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _print_memory(pid: int) -> None:
    root = psutil.Process(pid)
    total = 0
    for process in [root, *root.children(recursive=True)]:
        pss = process.memory_full_info().pss
        total += pss
        print(f"{pss / 2**20:>7.0f} MiB  {' '.join(process.cmdline()[:5])[:100]}")
    print(f"{total / 2**20:>7.0f} MiB  in all")


if __name__ == "__main__":
    main()
