"""Runs compute-sanitizer, if it is installed, over one small case of each kernel."""

import shutil
import subprocess
import sys

from benchmarks.gpu.report import Report, Row

_ERROR_CODE = 9
_LIMIT_S = 120
_TOOLS = ("memcheck", "racecheck")


def check(report: Report, *, is_stand_in: bool) -> None:
    """On the stand-in the same small cases run without the sanitizer, to check that the command works."""
    small = [sys.executable, "-m", "benchmarks.gpu", "--small-cases"]
    if is_stand_in:
        report.put({"name": "the sanitizer's cases, without it", "verdict": _verdict([*small, "--stand-in"])})
        return
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    for tool in _TOOLS:
        row: Row = {"name": f"compute-sanitizer, {tool}"}
        command = [str(found), "--tool", tool, "--error-exitcode", str(_ERROR_CODE), *small]
        report.put(row | {"verdict": _verdict(command) if found else "not installed"})


def _verdict(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done within {_LIMIT_S} s"
    if done.returncode == 0:
        return "right"
    said = " ".join((done.stdout + done.stderr).split())[-300:]
    return f"{'found an error' if done.returncode == _ERROR_CODE else f'ended with {done.returncode}'}: {said}"
