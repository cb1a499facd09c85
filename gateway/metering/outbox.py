"""The gateway's durable outbox of usage events: SQLite on local disk, one writer thread, group commit.

What is waiting when the writer becomes free goes to it as one batch, which may grow for a moment first
(`gateway/gathering.py`), and all closes of a batch share one fsync. Notes of requests under way are written in the same
batches, but a batch without closes is not synced, so notes survive the death of the process but not always that of the
machine. The number of requests under way is bounded: `open` refuses more, so `close` always has room and cannot fail
for lack of it. All state belongs to the event loop; the thread receives whole batches and hands them back.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from gateway.gathering import Gathering
from gateway.metering.admissions import AdmissionCounter
from gateway.metering.folders import OwnedFolder, create_folder
from gateway.metering.journal import Journal, Progress, encode_event
from gateway.metering.refusals import RefusalCounter
from gateway.metering.room import OutboxRoom
from protocol.counts import AdmissionCount, RefusalCount
from protocol.usage import PriceLine, UsageEvent, UsageStatus

_log = logging.getLogger(__name__)

MAX_UNDER_WAY = 50_000
NOTE_WITHIN_S = 0.05
"""A request is noted as under way within this time. One that ends within half of it is never noted, so that only its
close is written. Under load most requests are that short, and a note costs as much as a close. If the process is
killed, requests that are not noted yet leave no trace and are not billed."""
PROGRESS_S = 0.25
MAX_NOTES = 500
"""Progress notes written per flush. With up to 500 streams each is noted every 0.25 s; with 9,000, every 4.5 s."""
TELL_COUNTS_S = 10.0
"""How many seconds of refusal counts a crash may lose."""
WRITE_DEADLINE_S = 10.0
"""After this long without an answer from the disk, waiters are told that the write failed."""
_RETRY_S = 0.5


class OutboxFull(Exception):
    """Too many requests are under way or unwritten, or too many events wait to be shipped. Refuse the request (503)."""


class OutboxFailed(Exception):
    """The disk refused the write, or took too long. The event stays in memory, and the write is retried."""


class OpenRequest(Protocol):
    """A request under way, as the outbox sees it. The outbox may call these methods any number of times."""

    @property
    def request_id(self) -> str: ...
    @property
    def completion_tokens(self) -> int: ...
    def price_lines(self) -> tuple[PriceLine, ...]: ...
    def event(self, status: UsageStatus) -> UsageEvent: ...


@dataclass
class _Batch:
    opened: list[tuple[str, bytes]] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    closed: list[tuple[str, bytes]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """Ids of closed requests that were noted as under way."""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    admissions: list[AdmissionCount] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.progress or self.closed or self.admissions)


class Outbox:
    """Use `async with Outbox(data_dir, incarnation)`, and run `keep_forever` beside the server, on one event loop."""

    def __init__(
        self,
        data_dir: Path,
        incarnation: str,
        *,
        max_under_way: int = MAX_UNDER_WAY,
        room: OutboxRoom | None = None,
        refusals: RefusalCounter | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._room = room
        self._incarnation = incarnation
        self._max_under_way = max_under_way
        self._admissions = AdmissionCounter()
        self._refusals = refusals or RefusalCounter()
        self._counts_told_at = 0.0
        self._under_way: dict[str, OpenRequest | None] = {}
        """By request id. None: closed, but not durable yet."""
        self._fresh: dict[str, OpenRequest] = {}
        self._aging: dict[str, OpenRequest] = {}
        """Requests in `_fresh` and `_aging` are not noted yet. Those in `_aging` were fresh at the last tick of a
        timer, which runs while there are any."""
        self._is_timer_set = False
        self._noted: dict[str, int] = {}
        """Request id -> completion tokens, as last noted."""
        self._batch = _Batch()
        self._gathering = Gathering()
        self._is_flush_due = False
        self._written = asyncio.Event()
        self._in_hand: _Batch | None = None
        """The batch that the thread has been writing since `_handed_over_at`."""
        self._handed_over_at = 0.0
        self._handed_over: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._failure: str | None = None
        self._is_writer_gone = False
        """The thread takes no more batches. What closes now is written by `_finish`."""
        self.num_closed = 0
        """Durable closes since the start."""
        self.num_commits = 0

    @property
    def failure(self) -> str | None:
        """Why the last write failed; None while the disk works. While it is set, the gateway is not ready."""
        return self._failure

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    async def __aenter__(self) -> "Outbox":
        self._loop = asyncio.get_running_loop()
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._folder, self._journal = await asyncio.to_thread(_start, self._data_dir, self._incarnation)
        self._thread = threading.Thread(target=self._write_forever, name="outbox-writer")
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Requests still under way have no server any more; the process that adopts the folder closes them as lost.
        self._note_aging()
        self._note_aging()
        self._batch.admissions += self._admissions.take()
        await self._until_written()
        if self._batch and not self._died.done():
            self._hand_over()
        # More may close while the last batch is written.
        await self._until_written()
        while self._can_hand_over:
            self._hand_over()
            await self._until_written()
        self._is_writer_gone = True
        self._handed_over.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._finish)

    async def keep_forever(self) -> None:
        """Note the progress of requests under way, regularly. Raises the exception that ended the writer thread, which
        must end the process."""
        while True:
            await asyncio.wait([self._died], timeout=PROGRESS_S)
            if self._died.done():
                self._died.result()
            self._note_progress()
            self._batch.admissions += self._admissions.take()
            self._flush_soon()
            await self._tell_counts()
            if self._in_hand is not None and self._loop.time() - self._handed_over_at > WRITE_DEADLINE_S:
                _fail(self._in_hand.waiters + self._batch.waiters, "the disk does not answer")

    def open(self, request: OpenRequest) -> None:
        """The request is under way. If this process dies, the usage noted so far is billed with the status `lost`.

        Raises OutboxFull.
        """
        if len(self._under_way) >= self._max_under_way:
            raise OutboxFull(f"{self._max_under_way} requests are under way or wait for the disk")
        if self._room is not None and self._room.shortage is not None:
            raise OutboxFull(self._room.shortage)
        self._under_way[request.request_id] = request
        if not self._is_timer_set:
            self._is_timer_set = True
            self._loop.call_later(NOTE_WITHIN_S / 2, self._note_in_time)
        self._fresh[request.request_id] = request

    def close(self, event: UsageEvent, *, is_correction: bool = False) -> asyncio.Future[None]:
        """Hand over the final event without waiting. Safe in `finally`: nothing is lost if nobody awaits the result.

        The future resolves when the event is durable, or raises OutboxFailed if the disk refused it. A second close of
        a request corrects the first; pass `is_correction` if the first may be written already.
        """
        encoded, request_id = encode_event(event), event.request_id
        if request_id in self._under_way and self._under_way[request_id] is None:
            # Drop the earlier close if it is not written yet; a copy on its way to the disk has the lower version.
            self._batch.closed = [each for each in self._batch.closed if each[0] != request_id]
        is_fresh = self._fresh.pop(request_id, None) is not None or self._aging.pop(request_id, None) is not None
        if not is_fresh and self._noted.pop(request_id, None) is not None:
            self._batch.forgotten.append(request_id)
            self._admissions.count(event, num_admitted=0, num_closed=1)
        elif is_fresh or not (is_correction or request_id in self._under_way):
            self._admissions.count(event, num_admitted=1, num_closed=1)
        self._under_way[request_id] = None
        future: asyncio.Future[None] = self._loop.create_future()
        self._batch.closed.append((request_id, encoded))
        self._batch.waiters.append(future)
        if len(self._under_way) == 1 and self._can_hand_over:
            # A lone request: the sooner the disk is asked, the more of what follows happens meanwhile.
            self._hand_over()
        else:
            self._flush_soon()
        return future

    async def written(self) -> None:
        """Wait until all events closed so far are on disk, or were refused by it."""
        waiters = self._batch.waiters or (self._in_hand.waiters if self._in_hand is not None else [])
        if waiters:
            await asyncio.wait([waiters[-1]])

    def _note_in_time(self) -> None:
        self._note_aging()
        self._flush_soon()
        self._is_timer_set = bool(self._aging)
        if self._is_timer_set:
            self._loop.call_later(NOTE_WITHIN_S / 2, self._note_in_time)

    def _note_aging(self) -> None:
        noted, self._aging, self._fresh = self._aging, self._fresh, {}
        for request_id, request in noted.items():
            event = request.event("lost")
            self._batch.opened.append((request_id, encode_event(event)))
            self._admissions.count(event, num_admitted=1, num_closed=0)
            self._noted[request_id] = request.completion_tokens

    async def _tell_counts(self) -> None:
        """Write the counts regularly, over a separate connection: counts may wait for the disk, but requests must not
        wait for counts."""
        if self._loop.time() - self._counts_told_at >= TELL_COUNTS_S and self._failure is None:
            self._counts_told_at = self._loop.time()
            refusals = self._refusals.take()
            try:
                await asyncio.to_thread(_tell_counts, self._folder.path, refusals)
            except sqlite3.Error as error:
                _log.warning("counts of refusals were lost, because the disk takes none: %s", error)

    def _note_progress(self) -> None:
        """Note progress, starting with the requests noted longest ago, so that each gets its turn."""
        num_notes = 0
        for request_id, noted in list(self._noted.items()):
            request = self._under_way.get(request_id)
            if request is None or request.completion_tokens == noted:
                continue
            del self._noted[request_id]
            self._noted[request_id] = request.completion_tokens
            self._batch.progress.append(Progress(request_id, request.completion_tokens, request.price_lines()))
            num_notes += 1
            if num_notes == MAX_NOTES:
                break

    async def _until_written(self) -> None:
        """Wait until the thread has no batch in hand, or has died."""
        while self._in_hand is not None and not self._died.done():
            self._written.clear()
            await self._written.wait()

    def _flush_soon(self) -> None:
        """Hand the batch over at the end of this iteration of the event loop, or of a later one while it grows, so that
        its closes share one write."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self._can_hand_over:
            return
        num_closed, now_s = len(self._batch.closed), time.monotonic()
        if self._gathering.waits(num_closed, now_s, num_expected=len(self._under_way)):
            self._flush_soon()
        else:
            self._hand_over()

    @property
    def _can_hand_over(self) -> bool:
        is_free = self._in_hand is None and self._failure is None and not self._is_writer_gone
        return is_free and bool(self._batch)

    def _hand_over(self) -> None:
        self._gathering.leave()
        self._in_hand, self._batch = self._batch, _Batch()
        self._handed_over_at = self._loop.time()
        self._handed_over.put(self._in_hand)

    def _write_forever(self) -> None:
        """The writer thread. It shares only the batches that are handed over and back."""
        try:
            while (batch := self._handed_over.get()) is not None:
                try:
                    if not batch:
                        self._journal.probe()
                    self._write(batch)
                except (sqlite3.Error, OverflowError) as error:
                    self._loop.call_soon_threadsafe(self._keep, batch, str(error))
                else:
                    self._loop.call_soon_threadsafe(self._settle, batch)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._die, error)

    def _write(self, batch: _Batch) -> None:
        closed = [event for _, event in batch.closed]
        self._journal.write(batch.opened, batch.progress, closed, batch.forgotten, batch.admissions)

    def _settle(self, batch: _Batch) -> None:
        self._in_hand = self._failure = None
        self._written.set()
        self.num_commits += 1
        self.num_closed += len(batch.closed)
        for request_id, _ in batch.closed:
            self._under_way.pop(request_id, None)
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._flush_soon()

    def _keep(self, batch: _Batch, reason: str) -> None:
        """Fail the waiters, and put the refused batch before whatever came meanwhile.

        Its progress notes are dropped: newer ones are on their way, and a value that is too large for the disk must not
        be tried again.
        """
        if self._failure is None:
            _log.error("the outbox cannot be written, its events are kept in memory: %s", reason)
        self._in_hand, self._failure = None, reason
        self._written.set()
        newer, admissions = self._batch, batch.admissions + self._batch.admissions
        self._batch = _Batch(
            batch.opened + newer.opened,
            newer.progress,
            batch.closed + newer.closed,
            batch.forgotten + newer.forgotten,
            newer.waiters,
            admissions,
        )
        _fail(batch.waiters, reason)
        self._loop.call_later(_RETRY_S, self._retry)

    def _retry(self) -> None:
        """Retry even with nothing to write: while the disk has failed no request begins, so nothing else would trigger
        a write."""
        if self._in_hand is None and not self._died.done() and not self._is_writer_gone:
            self._hand_over()

    def _die(self, error: BaseException) -> None:
        self._died.set_exception(error)
        self._died.exception()
        self._keep(self._in_hand or _Batch(), f"its writer ended: {error!r}")

    def _finish(self) -> None:
        if self._batch:
            try:
                self._write(self._batch)
                self._batch = _Batch()
            except Exception as error:
                _log.error("the rest of the outbox cannot be written either: %r", error)
        for _, event in self._batch.closed:
            # The last resort for a disk that never came back: the log.
            _log.critical("a usage event could not be written: %s", event.decode())
        try:
            self._journal.tell_counts(self._refusals.take())
        except sqlite3.Error as error:
            _log.warning("the last counts of refusals were lost, because the disk takes none: %s", error)
        is_empty = not self._batch.closed and self._journal.is_empty()
        self._journal.close()
        if is_empty:
            self._folder.remove()
        else:
            self._folder.release()


def _start(data_dir: Path, incarnation: str) -> tuple[OwnedFolder, Journal]:
    folder = create_folder(data_dir, incarnation)
    return folder, Journal.open(folder.path)


def _tell_counts(folder: Path, refusals: list[RefusalCount]) -> None:
    journal = Journal.open(folder, must_exist=True)
    try:
        journal.tell_counts(refusals)
    finally:
        journal.close()


def _fail(waiters: "list[asyncio.Future[None]]", reason: str) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(OutboxFailed(reason))
            # Mark the exception as retrieved: it is also logged and shown by `failure`, and after a client has left
            # nobody else retrieves it.
            waiter.exception()
