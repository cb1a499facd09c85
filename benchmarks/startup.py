"""Measures `tiergate up`: seconds from start to ready, and the memory of all its processes when idle.

    python -m benchmarks.startup [--runs 3]

Memory is the proportional set size (PSS), which counts pages shared by processes once. Prints JSON lines, and what each
process takes on stderr; exits 1 if a gate is missed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.platform import Platform, end_on_sigterm, running_platform

SETTLED_AFTER_S = 5.0
READY, MEMORY = Gate("<=", 8), Gate("<=", 2500)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    end_on_sigterm()
    report, seconds = Report(), []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(runs + 1):
            with running_platform(Path(folder) / "data") as platform:
                seconds.append(platform.seconds_to_ready)
                if i == runs:
                    time.sleep(SETTLED_AFTER_S)
                    report.add(Row(benchmark="startup.memory", unit="MiB", value=_memory_mib(platform), gate=MEMORY))
    report.add(Row(benchmark="startup.first", unit="s", value=seconds[0], gate=READY))
    report.add(Row(benchmark="startup.later", unit="s", value=statistics.median(seconds[1:]), details={"runs": runs}))
    report.print_table()
    return 0 if report.has_passed else 1


def _memory_mib(platform: Platform) -> float:
    total = 0.0
    for process in platform.processes():
        mib = process.memory_full_info().pss / 2**20
        total += mib
        print(f"{mib:>7.0f} MiB  {' '.join(process.cmdline()[:5])[:100]}", file=sys.stderr)
    return total


if __name__ == "__main__":
    sys.exit(main())
