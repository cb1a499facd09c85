"""A child process, in a session of its own so that Ctrl-C reaches only us. On Linux the kernel kills it when we die."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from gateway.processes.inheritance import die_with_parent

_LONGEST_LINE = 16_384


class Child:
    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
        self._process = process
        self._output = output

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str]) -> "Child":
        """Raises OSError when the program cannot be started."""
        read_end, write_end = os.pipe()
        output = await _reader_of(read_end)
        try:
            # A pipe of our own: asyncio's would let `wait` wait for grandchildren that hold it open.
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        finally:
            os.close(write_end)
        return cls(process, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, negative for a signal. The rest of its process group is killed."""
        status = await self._process.wait()
        self.signal(signal.SIGKILL)
        return status

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def lines(self) -> AsyncIterator[str]:
        """The lines of its stdout and stderr, until both are closed."""
        rest = b""
        while chunk := await self._output.read(65_536):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
            if len(rest) > _LONGEST_LINE:
                yield rest.decode(errors="replace")
                rest = b""
        if rest:
            yield rest.decode(errors="replace")


async def _reader_of(descriptor: int) -> asyncio.StreamReader:
    """A reader that closes the descriptor at the end of the stream."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
