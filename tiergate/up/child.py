"""One child process: in a session of its own, so that Ctrl-C reaches only us, and killed by the kernel if we are."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 16_384


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str]) -> "Child":
        """Raises OSError when the program cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, negative for a signal. What it left in its process group is killed."""
        status = await self._process.wait()
        self.signal(signal.SIGKILL)
        return status

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def lines(self) -> AsyncIterator[str]:
        """Its output and errors, until both are closed."""
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(65_536):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
            if len(rest) > _LONGEST_LINE:
                yield rest.decode(errors="replace")
                rest = b""
        if rest:
            yield rest.decode(errors="replace")


def _die_with_parent() -> Callable[[], None] | None:
    """What runs in the child before the program: Linux kills it when we die, even by kill -9."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
