"""Measures `tiergate up`: seconds from start to ready, and the memory of all its processes when idle.

    python -m benchmarks.startup [--runs 3]

Memory is the proportional set size (PSS), which counts pages shared by processes once.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.platform import Platform, end_on_sigterm, running_platform

SETTLED_AFTER_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    end_on_sigterm()
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(runs + 1):
            with running_platform(Path(folder) / "data") as platform:
                seconds.append(platform.seconds_to_ready)
                if i == runs:
                    time.sleep(SETTLED_AFTER_S)
                    _print_memory(platform)
    print(f"first start (new data directory): {seconds[0]:.1f} s")
    print(f"later starts: median {statistics.median(seconds[1:]):.1f} s of {runs}")


def _print_memory(platform: Platform) -> None:
    total = 0
    for process in platform.processes():
        pss = process.memory_full_info().pss
        total += pss
        print(f"{pss / 2**20:>7.0f} MiB  {' '.join(process.cmdline()[:5])[:100]}")
    print(f"{total / 2**20:>7.0f} MiB  in all")


if __name__ == "__main__":
    main()
