"""The machine: assignment of cores, resource use of processes, and context to report beside the figures."""

import os
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

_NUM_SYNCS = 100


@dataclass(frozen=True)
class Cores:
    """Which processes run on which cores. If there is only one core, or no affinity API, both sides use all cores."""

    servers: frozenset[int]
    """Cores of the gateway with all its processes, the relay and Valkey."""
    clients: frozenset[int]
    """Cores of the load generator, the upstream and this process."""
    every: frozenset[int]

    @property
    def are_apart(self) -> bool:
        return not self.servers & self.clients


def assign_cores() -> Cores:
    if not hasattr(os, "sched_getaffinity"):
        every = frozenset(range(os.cpu_count() or 1))
        return Cores(every, every, every)
    usable = sorted(os.sched_getaffinity(0))
    every = frozenset(usable)
    if len(usable) < 2:
        return Cores(every, every, every)
    return Cores(frozenset(usable[:1]), frozenset(usable[1:2]), every)


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Processes started inside the block inherit these cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """User and system time so far, over all threads."""
    times = [process.cpu_times() for process in processes]
    return float(sum(time.user + time.system for time in times))


def rss_bytes(processes: Iterable[psutil.Process]) -> int:
    """The resident memory of those processes that still exist."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += int(process.memory_info().rss)
    return total


def move(processes: Iterable[psutil.Process], cores: frozenset[int]) -> None:
    """Move processes, with all their threads, to other cores."""
    for process in processes:
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


class Others:
    """Measures how much of the machine is used by processes other than this one and its descendants."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._before_s = _others_s()

    def busy_cores(self) -> float:
        """The average since this object was created."""
        return max(0.0, (_others_s() - self._before_s) / (time.monotonic() - self._started))


def _others_s() -> float:
    times, ended = psutil.cpu_times(), os.times()
    every_s = times.user + times.nice + times.system + getattr(times, "softirq", 0) + getattr(times, "irq", 0)
    return float(every_s - cpu_s(family(os.getpid())) - ended.children_user - ended.children_system)


def sync_ms(folder: Path) -> float:
    """The median of one fsync of a short file in `folder`."""
    times = []
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        for _ in range(_NUM_SYNCS):
            file.write(b"x" * 512)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    path.unlink()
    return statistics.median(times)


def describe(folder: Path) -> dict[str, object]:
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).date().isoformat(),
        "sync_ms": round(sync_ms(folder), 3),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
