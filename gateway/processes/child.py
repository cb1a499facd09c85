"""The parent's view of one child process."""

import asyncio
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from gateway.metric_snapshots import Snapshot
from gateway.processes.inheritance import OPTION, Inherited, die_with_parent
from gateway.processes.messages import FromChild, Gathered, HurryUp, Link, Measure, Measured, StandInFor

END_WITHIN_S = 10.0


class Child:
    def __init__(self, number: int, process: asyncio.subprocess.Process, link: Link) -> None:
        self.number = number
        self.link = link
        self.ready = asyncio.Event()
        """Set once the child has accepted connections."""
        self.gone = asyncio.Event()
        """The child accepts no more connections; it may still have work under way."""
        self.is_leaving = False
        """Whether the child announced that it leaves, rather than died."""
        self.ended = asyncio.Event()
        self.num_silent_rounds = 0
        """Number of times the child was asked since its last message."""
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
        inherited = Inherited(slot=slot, listeners=descriptors, link=theirs.fileno())
        try:
            # A separate session: a terminal's signals reach only the parent, which forwards them to its children.
            process = await asyncio.create_subprocess_exec(
                *command,
                OPTION,
                inherited.argument(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *descriptors),
                start_new_session=True,
                preexec_fn=die_with_parent(),
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
        """The exit status, negative for a signal; None while the process runs."""
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
        """Ask for the child's metrics; cancelled if it ends without answering."""
        question: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self.link.send(Measure())
        return question

    def note_measured(self, told: Measured) -> None:
        """Resolve the oldest question: answers arrive in the order of the questions."""
        if self._questions:
            question = self._questions.popleft()
            if not question.done():
                question.set_result(told.own)

    def answer(self, number: int, all: Snapshot) -> None:
        self.link.send(Gathered(number, all))

    def stand_in_for(self, slots: frozenset[int]) -> None:
        self.link.send(StandInFor(slots))

    def stop(self) -> None:
        """Ask the child to end. A child that is not ready yet ends at once, since it has no work to lose."""
        self._signal(signal.SIGTERM)

    def hurry_up(self) -> None:
        self.link.send(HurryUp())

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def wait(self) -> None:
        """Wait for the process to end, after its last message; kill it after END_WITHIN_S."""
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
