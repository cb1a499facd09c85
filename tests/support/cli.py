"""Runs the command line as its users do: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping


def tiergate(
    *arguments: str, env: Mapping[str, str] | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "tiergate", *arguments],
        env={**clean, **(env or {})},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(*arguments: str, env: Mapping[str, str] | None = None, exit_code: int = 2) -> str:
    """Run a command that must fail with this exit code and exactly one line, on stderr; returns the line."""
    ended = tiergate(*arguments, env=env)
    assert ended.returncode == exit_code, ended
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and ended.stderr.endswith("\n"), ended.stderr
    return ended.stderr
