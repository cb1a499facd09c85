"""A gateway of several processes. The parent serves no requests; it starts, watches and replaces its children."""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Iterable, Sequence

from gateway.processes.child import END_WITHIN_S, Child
from gateway.processes.listeners import bind_for_each
from gateway.processes.messages import Gather, Leaving, Measured, Ready
from gateway.processes.restarts import Restarts
from gateway.processes.slot import GaveUp, Slot
from gateway.processes.totals import Totals
from gateway.settings import CONFIG_EXIT_CODE, GatewaySettings

_log = logging.getLogger(__name__)

ASK_EVERY_S = 5.0
HUNG_AFTER_ROUNDS = 6
GATHER_WITHIN_S = 1.0
"""Less than a child waits for the gathered metrics (GATHER_DEADLINE_S)."""


def run_parent(settings: GatewaySettings, command: Sequence[str]) -> int:
    """Serve with `settings.processes` children that run `command`; returns the exit code. Raises ConfigError."""
    listeners = bind_for_each(settings)
    try:
        return asyncio.run(Parent(settings, command, listeners).run())
    finally:
        for listener in listeners:
            listener.close()


class Parent:
    def __init__(self, settings: GatewaySettings, command: Sequence[str], listeners: Sequence[socket.socket]) -> None:
        self._settings = settings
        self._command = command
        self._listeners = listeners
        self._slots = [
            Slot(number, start=self._start, is_hopeless=self._is_hopeless, on_change=self._tell_stand_ins)
            for number in range(len(listeners))
        ]
        self._children: set[Child] = set()
        self._numbers = itertools.count()
        self._totals = Totals()
        self._stop, self._hurry, self._replace = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        self._listen_to_signals()
        async with asyncio.TaskGroup() as self._group:
            duties = [
                self._group.create_task(duty)
                for duty in (self._keep_all(), self._replace_on_request(), self._ask_forever())
            ]
            await self._stop.wait()
            for duty in duties:
                duty.cancel()
            await asyncio.wait(duties)
            await self._end_all()
        return self._exit_code

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._replace.set)

    def _on_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _keep_all(self) -> None:
        """Keep all slots filled. The first child starts alone until it serves.

        So a configuration error is reported once, and only one process prepares the database."""
        first, *others = self._slots
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(first.keep())
                await first.has_served.wait()
                for slot in others:
                    group.create_task(slot.keep())
        except* GaveUp as group_of_one:
            self._give_up(group_of_one)

    def _give_up(self, group: ExceptionGroup[GaveUp]) -> None:
        [first, *_] = group.exceptions
        self._exit_code = first.exit_code if isinstance(first, GaveUp) else 1
        self._stop.set()

    def _is_hopeless(self, status: int, restarts: Restarts) -> bool:
        """Whether to give up. While one child serves, starting the others is retried without end."""
        if any(slot.child is not None for slot in self._slots):
            return False
        was_never_good = not any(slot.has_served.is_set() for slot in self._slots)
        return restarts.is_hopeless or (status == CONFIG_EXIT_CODE and was_never_good)

    async def _replace_on_request(self) -> None:
        while True:
            await self._replace.wait()
            self._replace.clear()
            for slot in self._slots:
                await slot.has_served.wait()
                if not await slot.replace():
                    _log.error("the successor of process %d did not start: none is replaced from there on", slot.number)
                    break
            else:
                _log.info("all processes have been replaced")

    async def _start(self, slot: int) -> Child:
        child = await Child.start(self._command, number=next(self._numbers), slot=slot, listeners=self._listeners)
        self._children.add(child)
        self._group.create_task(self._watch(child))
        return child

    async def _watch(self, child: Child) -> None:
        """Handle the child's messages until it ends."""
        while (message := await child.link.receive()) is not None:
            child.num_silent_rounds = 0
            match message:
                case Ready():
                    child.ready.set()
                case Leaving():
                    child.note_gone(is_leaving=True)
                case Measured(own):
                    self._totals.note(child.number, own)
                    child.note_measured(message)
                case Gather(number, own):
                    self._totals.note(child.number, own)
                    self._group.create_task(self._gather(child, number))
        child.note_gone(is_leaving=False)
        await child.wait()
        self._children.discard(child)
        self._totals.retire(child.number)

    async def _gather(self, asking: Child, number: int) -> None:
        questions = {child.number: child.measure() for child in self._serving() if child is not asking}
        if questions:
            await asyncio.wait(questions.values(), timeout=GATHER_WITHIN_S)
        silent = {child for child, question in questions.items() if not question.done() or question.cancelled()}
        asking.answer(number, self._totals.of_all(silent=silent))

    async def _ask_forever(self) -> None:
        """Ask each child for its metrics regularly, so that they survive its sudden death.

        Kills a child that has been silent for too long or does not end in time after leaving."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            for child in self._serving():
                child.measure()
                child.num_silent_rounds += 1
                if child.num_silent_rounds > HUNG_AFTER_ROUNDS:
                    _log.error("pid %d has not turned for %g s; killing it", child.pid, HUNG_AFTER_ROUNDS * ASK_EVERY_S)
                    child.kill()
                elif child.gone_for_s > self._settings.drain_s + END_WITHIN_S:
                    _log.error("pid %d does not end although its time is over; killing it", child.pid)
                    child.kill()

    def _serving(self) -> Iterable[Child]:
        return [child for child in self._children if child.ready.is_set()]

    def _tell_stand_ins(self) -> None:
        vacant = frozenset(slot.number for slot in self._slots if slot.is_vacant)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.stand_in_for(vacant)

    async def _end_all(self) -> None:
        """End all children. Streams may finish within the drain time, unless a second signal arrives."""
        # Once the children have closed theirs, too, the kernel refuses connections instead of queueing them in vain.
        for listener in self._listeners:
            listener.close()
        for child in self._children:
            child.stop()
        ends = asyncio.ensure_future(self._all_ended())
        hurry = asyncio.ensure_future(self._hurry.wait())
        patience_s = self._settings.drain_s + END_WITHIN_S
        await asyncio.wait([ends, hurry], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        for child in self._children:
            child.hurry_up()
        await asyncio.wait([ends], timeout=END_WITHIN_S)
        hurry.cancel()
        for child in self._children:
            _log.error("pid %d did not end; killing it", child.pid)
            child.kill()

    async def _all_ended(self) -> None:
        for child in list(self._children):
            await child.ended.wait()
