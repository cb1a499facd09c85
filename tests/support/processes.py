"""Small real processes for the supervisor, and a console whose lines can be awaited."""

import asyncio
import io
import sys
from collections.abc import Callable
from pathlib import Path

from tiergate.up.console import Console
from tiergate.up.probes import Probe
from tiergate.up.service import Spec

DEADLINE_S = 20.0
SLEEPS = "import time; print('up and running', flush=True); time.sleep(600)"


def python(name: str, code: str, *, probe: Probe | None = None, stop_within_s: float = 10.0) -> Spec:
    argv = (sys.executable, "-S", "-c", code)
    return Spec(name=name, argv=argv, env={}, probe=probe, stop_within_s=stop_within_s)


class Lines(Console):
    """Keeps all printed lines, so that a test can wait for one."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        super().__init__(self.stream)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    async def until(self, wanted: str, *, times: int = 1) -> None:
        await until(lambda: self.text.count(wanted) >= times, what=f"{times} x {wanted!r} in:\n{self.text}")


async def until(condition: Callable[[], object], *, what: str) -> None:
    """Poll until the condition is true; raises AssertionError after the deadline."""
    for _ in range(int(DEADLINE_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
