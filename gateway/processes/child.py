"""One child, as its parent sees it."""

import asyncio
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from gateway.metric_snapshots import Snapshot
from gateway.processes.inheritance import OPTION, Inherited
from gateway.processes.messages import FromChild, Gathered, HurryUp, Link, Measure, Measured, StandInFor

END_WITHIN_S = 10.0


class Child:
    def __init__(self, number: int, process: asyncio.subprocess.Process, link: Link) -> None:
        self.number = number
        self.link = link
        self.ready = asyncio.Event()
        """It accepts connections, or did."""
        self.gone = asyncio.Event()
        """It accepts no more connections; it may still have work under way."""
        self.is_leaving = False
        """It went in order, and not by dying."""
        self.ended = asyncio.Event()
        self.num_silent_rounds = 0
        """How often it was asked since it last said something."""
        self._started_at = time.monotonic()
        self._gone_at = float("inf")
        self._process = process
        self._questions: deque[asyncio.Future[Snapshot]] = deque()

    @classmethod
    async def start(
        cls, command: Sequence[str], *, number: int, slot: int, listeners: Sequence[socket.socket]
    ) -> "Child":
        """Raises OSError."""
        descriptors = tuple(listener.fileno() for listener in listeners)
        ours, theirs = socket.socketpair()
        inherited = Inherited(slot=slot, listeners=descriptors, link=theirs.fileno(), parent_pid=os.getpid())
        try:
            # In a session of its own: what a terminal sends reaches the parent alone, which tells its children.
            process = await asyncio.create_subprocess_exec(
                *command,
                OPTION,
                inherited.argument(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *descriptors),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(number, process, Link(reader, writer, FromChild))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def gone_for_s(self) -> float:
        return time.monotonic() - self._gone_at

    def note_gone(self, *, is_leaving: bool) -> None:
        if not self.gone.is_set():
            self.is_leaving, self._gone_at = is_leaving, time.monotonic()
            self.gone.set()

    def measure(self) -> asyncio.Future[Snapshot]:
        """What it has measured; cancelled when it ends without an answer."""
        question: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self.link.send(Measure())
        return question

    def note_measured(self, told: Measured) -> None:
        """Answers come in the order of the questions."""
        if self._questions:
            question = self._questions.popleft()
            if not question.done():
                question.set_result(told.own)

    def answer(self, number: int, all: Snapshot) -> None:
        self.link.send(Gathered(number, all))

    def stand_in_for(self, slots: frozenset[int]) -> None:
        self.link.send(StandInFor(slots))

    def stop(self) -> None:
        """Before it is ready, it has nothing to lose and ends at once."""
        self._signal(signal.SIGTERM)

    def hurry_up(self) -> None:
        self.link.send(HurryUp())

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def wait(self) -> None:
        """For its end, after its last word; one that does not come to an end is killed."""
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        while self._questions:
            self._questions.popleft().cancel()
        await self.link.close()
        self.ended.set()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
