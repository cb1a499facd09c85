"""A process that has to run: started, probed until it is ready, restarted when it dies, stopped on request."""

import asyncio
import signal
import time
from collections.abc import Mapping

import msgspec

from tiergate.failure import BAD_INPUT
from tiergate.up.child import Child
from tiergate.up.console import Console
from tiergate.up.probes import Probe
from tiergate.up.restarts import Restarts

PROBE_PAUSE_S = 0.05


class Spec(msgspec.Struct, kw_only=True, frozen=True):
    """probe: None if the process is ready as soon as it runs.

    ready_within_s: a process that is not ready by then is killed and started again.
    stop_within_s: the time from SIGTERM to SIGKILL.
    muted: lines that contain one of these texts are not shown, since they do not apply here.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    probe: Probe | None = None
    ready_within_s: float = 120.0
    stop_within_s: float = 10.0
    muted: tuple[str, ...] = ()


class Crashed(Exception):
    """A process cannot be kept running; the message is one line, usually the last that the process printed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Service:
    def __init__(self, spec: Spec, console: Console) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self._console = console
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._child: Child | None = None
        self._last_line = ""
        self._became_ready = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Keep the process running until `stop`. Raises Crashed if it cannot be kept running."""
        restarts = Restarts(has_probe=self.spec.probe is not None)
        try:
            while not self._stopping.is_set():
                started_at = time.monotonic()
                status = await self._run_once()
                if self._stopping.is_set():
                    return
                lived_s = time.monotonic() - started_at
                restarts.note(status, lived_s=lived_s, became_ready=self._became_ready)
                self._check(status, restarts)
                await self._pause(status, restarts.pause_s)
        finally:
            self.kill()
            self._ended.set()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process takes too long."""
        self._stopping.set()
        if self._child is None:
            return
        self._child.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.stop_within_s):
                await self._ended.wait()
        except TimeoutError:
            self._console.say(f"{self.spec.name} did not stop within {self.spec.stop_within_s:g} s; killing it")
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    async def _run_once(self) -> int:
        try:
            child = await Child.start(self.spec.argv, self.spec.env)
        except OSError as error:
            raise Crashed(f"{self.spec.name} cannot be started: {error}", 1) from error
        self._child, self._became_ready = child, False
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(child))
            probing = group.create_task(self._await_ready())
            status = await child.wait()
            probing.cancel()
        self._child = None
        self.ready.clear()
        return status

    async def _pump(self, child: Child) -> None:
        async for line in child.lines():
            if any(text in line for text in self.spec.muted):
                continue
            self._console.line(self.spec.name, line)
            self._last_line = line.strip() or self._last_line

    async def _await_ready(self) -> None:
        started_at = time.monotonic()
        while self.spec.probe is not None and not await self.spec.probe():
            await asyncio.sleep(PROBE_PAUSE_S)
            if time.monotonic() - started_at > self.spec.ready_within_s and self._child is not None:
                self._last_line = f"not ready within {self.spec.ready_within_s:g} s"
                self._child.signal(signal.SIGKILL)
                return
        self._became_ready = True
        self.ready.set()
        self._console.say(f"{self.spec.name} is ready after {time.monotonic() - started_at:.1f} s")

    def _check(self, status: int, restarts: Restarts) -> None:
        """Raises Crashed if starting it again is pointless."""
        if restarts.is_bad_input(status, code=BAD_INPUT):
            raise Crashed(self._last_line or f"{self.spec.name} refused its options", BAD_INPUT)
        if restarts.is_hopeless:
            why = self._last_line or describe(status)
            raise Crashed(f"{self.spec.name} died {restarts.num_failed_starts} times in a row: {why}", 1)

    async def _pause(self, status: int, pause_s: float) -> None:
        self._console.say(f"{self.spec.name} died ({describe(status)}); starting it again in {pause_s:g} s")
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return


def describe(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return f"signal {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"signal {-status}"
