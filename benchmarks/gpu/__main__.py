"""python -m benchmarks.gpu [--minutes N] [--out DIR] [--only PART ...] [--stand-in]

Reports versions and the machine's own limits. Then it checks each kernel's results twice (different bits mean a race),
CUDA graphs against eager steps, and compute-sanitizer. Then it measures times: each kernel as a fraction of the limits,
decode steps as a fraction of the roofline, the cost of adapters, and the server's tokens per second. The table is
rewritten after each row. A failed check skips that kernel's timing, not the rest of the run. --only: after the
kernels' results, only these parts. --stand-in: run tiny shapes on the tests' stand-in, without times, to check that
this program works.
"""

import argparse
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu import machine, sanitizer, served, steps
from benchmarks.gpu.cases import LLAMA_8B, TINY, Case, Shapes, cases
from benchmarks.gpu.report import Report, Row, failure
from kernels import gpu

_TOLERANCE = 2e-2
_PARTS = ("graphs", "sanitizer", "times", "steps", "adapters", "server")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--small-cases", action="store_true", help="only the small cases' numbers, and no table")
    options = parser.parse_args()
    if not options.stand_in and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --stand-in runs without one")
    with _device(options.stand_in):
        if options.small_cases:
            sys.exit(_check_small("cpu" if options.stand_in else "cuda"))
        report = Report(options.out, machine.versions(), has_times=not options.stand_in)
        stop_at = time.monotonic() + 60 * options.minutes
        _run(report, options.only, is_stand_in=options.stand_in, stop_at=stop_at)


def _device(is_stand_in: bool) -> Any:
    if not is_stand_in:
        gpu.choose_ptxas()
        return nullcontext()
    from tests.kernels.hopper import on_hopper

    return on_hopper()


def _run(report: Report, parts: Collection[str], *, is_stand_in: bool, stop_at: float) -> None:
    device, shapes = ("cpu", TINY) if is_stand_in else ("cuda", LLAMA_8B)

    def has_time() -> bool:
        return time.monotonic() < stop_at

    if not is_stand_in:
        report.limits = {
            "copy_bytes_per_s": machine.copy_bytes_per_s(),
            "products_per_s": machine.products_per_s(),
        }
        report.write()
    for case in cases(shapes, device):
        report.put(_check(case) if has_time() else {"name": case.name, "verdict": "no time left"})
    runs = {
        "graphs": lambda: steps.check_graphs(report, device=device, new_graph=_new_graph(is_stand_in)),
        "sanitizer": lambda: sanitizer.check(report, is_stand_in=is_stand_in),
        "times": lambda: _time_cases(report, shapes, device, stop_at),
        "steps": lambda: steps.measure_steps(report, device=device, is_timed=not is_stand_in, has_time=has_time),
        "adapters": lambda: steps.measure_lora(report, device=device, is_timed=not is_stand_in, has_time=has_time),
        "server": lambda: served.measure(report, is_stand_in=is_stand_in),
    }
    for part in _PARTS:
        if part in parts and has_time():
            steps.release()
            runs[part]()


def _new_graph(is_stand_in: bool) -> Any:
    if is_stand_in:
        from tests.kernels.pretend_graph import PretendGraph

        return PretendGraph
    return None


def _check(case: Case) -> Row:
    """Run the case twice, and compare the results with each other and with the reference."""
    row: Row = {"name": case.name}
    try:
        first, second, truth = case.run().clone(), case.run(), case.truth().float()
        row["error"] = float((first.float() - truth).norm() / truth.norm())
        if not torch.equal(first, second):
            return row | {"verdict": "its bits move: a race"}
    except Exception as error:
        return row | {"verdict": failure(error)}
    return row | {"verdict": "right" if row["error"] <= _TOLERANCE else "wrong"}


def _time_cases(report: Report, shapes: Shapes, device: str, stop_at: float) -> None:
    for case in cases(shapes, device):
        if time.monotonic() > stop_at:
            return
        if not report.is_right(case.name):
            continue
        row: Row = {"name": case.name}
        try:
            row["seconds"] = machine.graph_seconds(case.run)
            row["of_copy"] = case.num_bytes / row["seconds"] / report.limits["copy_bytes_per_s"]
            row["of_products"] = case.num_products / row["seconds"] / report.limits["products_per_s"]
            if case.peer is not None:
                row["of_peer"] = machine.seconds(case.peer) / row["seconds"]
        except Exception as error:
            row["verdict"] = failure(error)
        report.put(row)


def _check_small(device: str) -> int:
    """Check the small cases; returns the exit code. Without the attention of libraries, in which racecheck finds faults
    of their own."""
    with sdpa_kernel(SDPBackend.MATH):
        rows = [_check(case) for case in cases(TINY, device)]
    print(rows)
    return 0 if all(row["verdict"] == "right" for row in rows) else 1


if __name__ == "__main__":
    main()
