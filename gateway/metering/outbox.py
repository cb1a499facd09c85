"""The gateway's durable outbox of usage events: SQLite on local disk, one writer thread, group commit.

All closes that wait when the writer comes round share one fsync; opens and progress travel along, unsynced (they
survive the death of the process, not that of the machine). A bounded number of requests may be under way: `open`
refuses beyond it, so `close` always has its place and cannot fail for want of room.
"""

import asyncio
import logging
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec

from gateway.metering.folders import OwnedFolder, create_folder, list_folders, take_orphan
from gateway.metering.journal import Journal, Progress, encode_event
from protocol.usage import UsageEvent

_log = logging.getLogger(__name__)

MAX_UNDER_WAY = 50_000
_PROGRESS_DELAY_S = 0.05
"""Progress alone wakes the writer only after this, so that it coalesces."""
_RETRY_S = 0.5


class OutboxFull(Exception):
    """Too many requests are under way or unwritten; refuse the request with 503."""


class OutboxFailed(Exception):
    """The disk refused the write. The event is kept in memory and tried again."""


@dataclass
class _Batch:
    opened: dict[str, bytes] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    closed: list[tuple[str, bytes]] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def is_urgent(self) -> bool:
        return bool(self.opened or self.closed)


class Outbox:
    """`async with Outbox(data_dir, incarnation)`. All methods are called on the event loop that entered it."""

    def __init__(self, data_dir: Path, incarnation: str, *, max_under_way: int = MAX_UNDER_WAY) -> None:
        self._data_dir = data_dir
        self._incarnation = incarnation
        self._max_under_way = max_under_way
        self._places: set[str] = set()
        self._batch = _Batch()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._failure: str | None = None
        self.num_closed = 0
        """Durable closes since the start."""
        self.num_commits = 0

    @property
    def failure(self) -> str | None:
        """Why the last write failed; None while the disk works. Not ready while it is set."""
        return self._failure

    @property
    def num_under_way(self) -> int:
        return len(self._places)

    async def __aenter__(self) -> "Outbox":
        self._loop = asyncio.get_running_loop()
        self._folder, self._journal = await asyncio.to_thread(_start, self._data_dir, self._incarnation)
        self._thread = threading.Thread(target=self._write_forever, name="outbox-writer")
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._finish)

    def open(self, event: UsageEvent) -> None:
        """Note that the request is under way; what stands here is billed, as `lost`, should this process die.

        Raises OutboxFull.
        """
        if len(self._places) >= self._max_under_way:
            raise OutboxFull(f"{self._max_under_way} requests are under way or wait for the disk")
        # Encoded here: an event that cannot be fails its own request, and never the writer.
        encoded = encode_event(msgspec.structs.replace(event, status="lost"))
        self._places.add(event.request_id)
        with self._wake:
            self._batch.opened[event.request_id] = encoded
            self._wake.notify()

    def progress(self, request_id: str, completion_tokens: int, cost_nanousd: int) -> None:
        """What a request under way has come to so far. Cheap; only the latest is written."""
        with self._wake:
            is_first = not self._batch.progress
            self._batch.progress[request_id] = Progress(completion_tokens, cost_nanousd)
            if is_first:
                self._wake.notify()

    def close(self, event: UsageEvent) -> asyncio.Future[None]:
        """Hand over the final event, without waiting: safe in `finally`, nothing is lost if nobody awaits.

        The future resolves when the event is durable, or with OutboxFailed when the disk refused it.
        """
        encoded = encode_event(event)
        future: asyncio.Future[None] = self._loop.create_future()
        # The failure is also logged and shown by `failure`; an event whose client left has nobody to retrieve it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        with self._wake:
            self._batch.closed.append((event.request_id, encoded))
            self._batch.waiters.append(future)
            self._wake.notify()
        return future

    def _write_forever(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            try:
                self._write(batch)
            except (sqlite3.Error, OverflowError) as error:
                self._keep(batch, error)
                with self._wake:
                    if self._is_stopping:
                        return
                    self._wake.wait_for(lambda: self._is_stopping, _RETRY_S)

    def _next_batch(self) -> _Batch | None:
        """Wait for work and take all of it; None when stopping with nothing left."""
        with self._wake:
            self._wake.wait_for(lambda: self._is_stopping or self._batch.is_urgent or self._batch.progress)
            if not self._batch.is_urgent and not self._is_stopping:
                self._wake.wait_for(lambda: self._is_stopping or self._batch.is_urgent, _PROGRESS_DELAY_S)
            batch, self._batch = self._batch, _Batch()
        return batch if batch.is_urgent or batch.progress else None

    def _write(self, batch: _Batch) -> None:
        for request_id, _ in batch.closed:
            batch.opened.pop(request_id, None)
            batch.progress.pop(request_id, None)
        self._journal.write(batch.opened, batch.progress, batch.closed)
        self._failure = None
        self.num_commits += 1
        if batch.closed:
            self._loop.call_soon_threadsafe(self._settle, batch)

    def _settle(self, batch: _Batch) -> None:
        self.num_closed += len(batch.closed)
        self._places.difference_update(request_id for request_id, _ in batch.closed)
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _keep(self, batch: _Batch, error: Exception) -> None:
        """Tell the waiters, and put what was refused before whatever came meanwhile.

        Progress is dropped: newer is on its way, and a number that is too large must not come again.
        """
        if self._failure is None:
            _log.error("the outbox cannot be written, its events are kept in memory: %s", error)
        self._failure = str(error)
        self._loop.call_soon_threadsafe(_fail, batch.waiters, self._failure)
        with self._wake:
            newer = self._batch
            self._batch = _Batch(
                batch.opened | newer.opened,
                newer.progress,
                batch.closed + newer.closed,
                newer.waiters,
            )

    def _finish(self) -> None:
        self._thread.join()
        for _, event in self._batch.closed:
            # The last resort for a disk that never came back: the log.
            _log.critical("a usage event could not be written: %s", event.decode())
        is_empty = not self._batch.closed and self._journal.is_empty()
        self._journal.close()
        if is_empty:
            self._folder.remove()
        else:
            self._folder.release()


def adopt_orphans(data_dir: Path) -> int:
    """Close what dead incarnations left under way, as `lost` with the tokens known; how many requests those were.

    Their folders stay for the consumer, which ships and removes them.
    """
    num_lost = 0
    for path in list_folders(data_dir):
        folder = take_orphan(path)
        if folder is not None:
            num_lost += _close_lost(folder)
            folder.release()
    return num_lost


def _start(data_dir: Path, incarnation: str) -> tuple[OwnedFolder, Journal]:
    folder = create_folder(data_dir, incarnation)
    return folder, Journal.open(folder.path)


def _close_lost(folder: OwnedFolder) -> int:
    journal = Journal.open(folder.path)
    try:
        return journal.close_lost()
    finally:
        journal.close()


def _fail(waiters: list[asyncio.Future[None]], reason: str) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(OutboxFailed(reason))
