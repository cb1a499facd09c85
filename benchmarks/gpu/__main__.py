"""python -m benchmarks.gpu [--minutes N] [--out DIR] [--stand-in]

Versions, the machine's own limits, each kernel's numbers twice (bits that move are a race), and where these are right,
its time as a part of the limits. The table is rewritten after each row. --stand-in: tiny shapes on the tests' stand-in,
and no times, to see that this program works.
"""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import machine
from benchmarks.gpu.cases import LLAMA_8B, TINY, Case, cases
from kernels import gpu

_TOLERANCE = 2e-2


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args()
    if not options.stand_in and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --stand-in runs without one")
    options.out.mkdir(parents=True, exist_ok=True)
    with _device(options.stand_in):
        _run(options.out, is_stand_in=options.stand_in, stop_at=time.monotonic() + 60 * options.minutes)


def _device(is_stand_in: bool) -> Any:
    if not is_stand_in:
        gpu.choose_ptxas()
        return nullcontext()
    from tests.kernels.hopper import on_hopper

    return on_hopper()


def _run(out: Path, *, is_stand_in: bool, stop_at: float) -> None:
    report: dict[str, Any] = {"versions": machine.versions(), "limits": {}, "rows": []}
    if not is_stand_in:
        report["limits"] = {
            "copy_bytes_per_s": machine.copy_bytes_per_s(),
            "products_per_s": machine.products_per_s(),
        }
    _write(out, report)
    for case in cases(TINY, "cpu") if is_stand_in else cases(LLAMA_8B, "cuda"):
        if time.monotonic() > stop_at:
            report["rows"].append({"name": case.name, "verdict": "no time left"})
        else:
            report["rows"].append(_measure(case, report["limits"]))
        print(report["rows"][-1], flush=True)
        _write(out, report)


def _measure(case: Case, limits: dict[str, float]) -> dict[str, Any]:
    """Numbers, then times; a failed check stops this case alone."""
    row: dict[str, Any] = {"name": case.name}
    try:
        first, second, truth = case.run().clone(), case.run(), case.truth().float()
        row["error"] = float((first.float() - truth).norm() / truth.norm())
        if not torch.equal(first, second):
            return row | {"verdict": "its bits move: a race"}
        if not row["error"] <= _TOLERANCE:
            return row | {"verdict": "wrong"}
        if not limits:
            return row | {"verdict": "right"}
        row["seconds"] = machine.seconds(case.run)
        row["of_copy"] = case.num_bytes / row["seconds"] / limits["copy_bytes_per_s"]
        row["of_products"] = case.num_products / row["seconds"] / limits["products_per_s"]
    except Exception as error:
        return row | {"verdict": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return row | {"verdict": "right"}


def _write(out: Path, report: dict[str, Any]) -> None:
    (out / "report.json").write_text(json.dumps(report, indent=1))
    lines = [
        "| case | verdict | error | microseconds | of copy | of products |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        figures = (f"{row[name] * scale:.3g}" if name in row else "" for name, scale in _COLUMNS)
        lines.append(f"| {row['name']} | {row['verdict']} | {' | '.join(figures)} |")
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    (out / "report.md").write_text(f"{versions}\n\n" + "\n".join(lines) + "\n")


_COLUMNS = (("error", 1), ("seconds", 1e6), ("of_copy", 1), ("of_products", 1))

if __name__ == "__main__":
    main()
