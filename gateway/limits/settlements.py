"""Settlements on their way to Redis: handed over without waiting, and kept while Redis is away."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from gateway.limits.local import Entry
from gateway.redis_client import AWAY
from gateway.redis_client.connection import is_our_fault
from gateway.redis_client.resp import Reply

_log = logging.getLogger(__name__)

MAX_WAITING = 100_000
"""Beyond this, settlements of one tenant and day are added up."""
BATCH = 64
"""How many are sent at once. With more, requests would wait for their turn, here and in Redis."""
MOST_COMPARED = 500
"""Among how many a settlement to add up with is looked for."""
RETRY_S = 0.25

Outcome = Literal["actual", "refund"]


class Settlement(msgspec.Struct, frozen=True):
    entry: Entry
    outcome: Outcome


class Settlements:
    def __init__(self, send: Callable[[Settlement], "asyncio.Future[Reply]"], *, is_open: Callable[[], bool]) -> None:
        """send: may raise Lost."""
        self._send = send
        self._is_open = is_open
        self._waiting: deque[Settlement] = deque()
        self._sent: dict[asyncio.Future[Reply], Settlement] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def put(self, settlement: Settlement) -> "asyncio.Future[Reply] | None":
        """Send the settlement now, or keep it until it can be sent. Cannot fail, so it is safe in `finally`.

        The returned future resolves when Redis has answered; its failure only means that the settlement is sent again.
        """
        if self._is_open():
            try:
                return self._send_one(settlement)
            except AWAY:
                pass
        self.keep(settlement)
        return None

    def keep(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        if len(self._waiting) > MAX_WAITING:
            self._add_up()
        self._wake.set()

    def request_ids(self) -> set[str]:
        """The request ids of all settlements that Redis has not confirmed."""
        return {each.entry.admission.request_id for each in (*self._waiting, *self._sent.values())}

    def send_all(self) -> None:
        """Send all waiting settlements, without waiting for answers. Raises Lost."""
        while self._waiting:
            self._send_one(self._waiting[0])
            self._waiting.popleft()

    async def drain(self) -> None:
        """Send all that are waiting, until none is left or nothing more gets through."""
        await self._answered()
        num_before = len(self._waiting) + 1
        while 0 < len(self._waiting) < num_before:
            num_before = len(self._waiting)
            await self.drain_once()

    async def drain_once(self, *, is_forced: bool = False) -> None:
        """Send the settlements that are waiting now, and wait until all sent ones are answered. Those that cannot be
        sent stay waiting."""
        num_left = len(self._waiting)
        try:
            while num_left > 0 and (is_forced or self._is_open()):
                num_sent = min(BATCH, num_left, len(self._waiting))
                for _ in range(num_sent):
                    self._send_one(self._waiting[0])
                    self._waiting.popleft()
                num_left -= BATCH
                await self._answered()
        except AWAY:
            pass
        await self._answered()

    async def drain_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.drain_once()
            if self._waiting:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _answered(self) -> None:
        if self._sent:
            await asyncio.wait(list(self._sent))

    def _send_one(self, settlement: Settlement) -> "asyncio.Future[Reply]":
        future = self._send(settlement)
        self._sent[future] = settlement
        future.add_done_callback(self._note_answer)
        return future

    def _note_answer(self, future: "asyncio.Future[Reply]") -> None:
        settlement = self._sent.pop(future)
        # After a cancellation the answer is unknown, as after a lost one. Sending a settlement twice counts once.
        error = None if future.cancelled() else future.exception()
        if is_our_fault(error):
            _log.error("the settlement of %s is given up: %s", settlement.entry.admission.request_id, error)
        elif future.cancelled() or error is not None:
            self.keep(settlement)

    def _add_up(self) -> None:
        """Merge a later settlement into the oldest one, if both are unknown to Redis and of the same kind."""
        first = self._waiting.popleft()
        for index, other in enumerate(self._waiting):
            if _is_alike(first, other):
                first.entry.tokens += other.entry.tokens
                first.entry.cost_nanousd += other.entry.cost_nanousd
                first.entry.closed_at = max(first.entry.closed_at, other.entry.closed_at)
                del self._waiting[index]
                break
            if index >= MOST_COMPARED:
                break
        self._waiting.append(first)


def _is_alike(one: Settlement, other: Settlement) -> bool:
    return all(
        each.outcome == "actual" and not each.entry.is_known and each.entry.at <= each.entry.accounts[0].horizon
        for each in (one, other)
    ) and one.entry.terms.absorbs(other.entry.terms)
