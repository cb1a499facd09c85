"""The backlog in all outboxes of a data directory, this gateway's and others', for `/metrics`."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gateway.clock import utc_now
from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE, Journal

_log = logging.getLogger(__name__)

CACHE_S = 10.0


@dataclass(frozen=True)
class Waiting:
    num_events: int = 0
    """Closed events that are not shipped yet. May be a few too high: an exact count would take long after an outage."""
    oldest_at: datetime | None = None
    """When the oldest of these events was closed."""
    num_refused: int = 0
    """Events set aside because they were refused downstream."""
    num_bytes: int = 0
    """Bytes on disk, without the free pages inside a file, which the next events will reuse."""

    def lag_s(self, now: datetime) -> float:
        return max(0.0, (now - self.oldest_at).total_seconds()) if self.oldest_at is not None else 0.0


class Backlog:
    """Reads the outboxes at most once per `CACHE_S` and returns the cached result in between."""

    def __init__(self, data_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._data_dir = data_dir
        self._clock = clock
        self._waiting = Waiting()
        self._read_at = float("-inf")

    async def read(self) -> Waiting:
        """Off the event loop, because the disk may be slow."""
        if self._clock() - self._read_at >= CACHE_S:
            # Set before reading, so that a concurrent scrape returns the previous result instead of reading too.
            self._read_at = self._clock()
            self._waiting = await asyncio.to_thread(read_waiting, self._data_dir)
        return self._waiting


def read_waiting(data_dir: Path) -> Waiting:
    return _add_up([_read_folder(folder) for folder in list_folders(data_dir)])


def _add_up(each: Iterable[Waiting]) -> Waiting:
    found = list(each)
    return Waiting(
        num_events=sum(waiting.num_events for waiting in found),
        oldest_at=min((waiting.oldest_at for waiting in found if waiting.oldest_at is not None), default=None),
        num_refused=sum(waiting.num_refused for waiting in found),
        num_bytes=sum(waiting.num_bytes for waiting in found),
    )


def _read_folder(folder: Path) -> Waiting:
    try:
        journal = Journal.open(folder, must_exist=True)
    except sqlite3.Error as error:
        # The folder was just created, was just removed, or is broken; the consumer reports a broken one.
        _log.debug("cannot look into %s: %s", folder, error)
        return Waiting()
    try:
        return Waiting(
            num_events=journal.estimate_closed(),
            oldest_at=_closed_at(journal),
            num_refused=journal.count_refused(),
            num_bytes=journal.used_bytes() + (folder / f"{JOURNAL_FILE}-wal").stat().st_size,
        )
    except (sqlite3.Error, OSError) as error:
        _log.debug("cannot look into %s: %s", folder, error)
        return Waiting()
    finally:
        journal.close()


def _closed_at(journal: Journal) -> datetime | None:
    oldest = journal.read_closed(1)
    if not oldest:
        return None
    # An event with a timestamp in the future counts as closed now.
    event = oldest[0].event
    return min(utc_now(), event.timestamp + timedelta(milliseconds=event.total_latency_ms))
