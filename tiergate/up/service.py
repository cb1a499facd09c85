"""One process that has to run: started, probed until ready, restarted when it dies, stopped when asked."""

import asyncio
import signal
import time
from collections.abc import Mapping

import msgspec

from tiergate.failure import BAD_INPUT
from tiergate.up.child import Child
from tiergate.up.console import Console
from tiergate.up.probes import Probe

PROBE_PAUSE_S = 0.05
READY_WITHIN_S = 120.0
QUICK_DEATH_S = 10.0
"""A process that dies sooner after its start counts towards a crash loop."""
MAX_QUICK_DEATHS = 5
_FIRST_PAUSE_S = 0.25


class Spec(msgspec.Struct, kw_only=True, frozen=True):
    """probe None: ready as soon as it runs. stop_within_s: after SIGTERM, before it is killed.

    muted: lines that contain one of these are advice to somebody else, and not shown.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    probe: Probe | None = None
    stop_within_s: float = 10.0
    muted: tuple[str, ...] = ()


class Crashed(Exception):
    """A process that will not run; the message is one line with its own last words."""

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
        self._was_proven = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Keep it running until `stop`. Raises Crashed when it cannot be kept."""
        num_quick_deaths = 0
        try:
            while not self._stopping.is_set():
                started_at = time.monotonic()
                status = await self._run_once()
                if self._stopping.is_set():
                    return
                is_quick = time.monotonic() - started_at < QUICK_DEATH_S
                num_quick_deaths = num_quick_deaths + 1 if is_quick else 1
                self._check(status, num_quick_deaths)
                await self._pause(status, _FIRST_PAUSE_S * 2 ** (num_quick_deaths - 1))
        finally:
            self.kill()
            self._ended.set()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when it takes too long."""
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
        self._child = child
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
            if time.monotonic() - started_at > READY_WITHIN_S and self._child is not None:
                self._last_line = f"not ready within {READY_WITHIN_S:g} s"
                self._child.signal(signal.SIGKILL)
                return
        self._was_proven = self.spec.probe is not None
        self.ready.set()
        self._console.say(f"{self.spec.name} is ready after {time.monotonic() - started_at:.1f} s")

    def _check(self, status: int, num_quick_deaths: int) -> None:
        """Whether another try makes sense. Exit code 2 is bad input, which stays bad."""
        if status == BAD_INPUT and not self._was_proven:
            raise Crashed(self._last_line or f"{self.spec.name} refused its options", BAD_INPUT)
        if num_quick_deaths >= MAX_QUICK_DEATHS:
            why = self._last_line or describe(status)
            raise Crashed(f"{self.spec.name} died {num_quick_deaths} times in a row: {why}", 1)

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
