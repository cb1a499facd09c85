"""A process that has to succeed before others may start."""

import signal

from tiergate.up.child import Child
from tiergate.up.console import Console
from tiergate.up.service import Crashed, Spec, describe


async def run_step(spec: Spec, console: Console) -> None:
    """Raises Crashed with its last line if its exit status is not 0."""
    last_line = ""
    child = await Child.start(spec.argv, spec.env)
    try:
        async for line in child.lines():
            console.line(spec.name, line)
            last_line = line.strip() or last_line
        status = await child.wait()
    finally:
        child.signal(signal.SIGKILL)
    if status != 0:
        raise Crashed(last_line or f"{spec.name} failed ({describe(status)})", max(status, 1))
