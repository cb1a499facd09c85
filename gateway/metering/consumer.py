"""Moves usage events from the outboxes of this machine's gateways into ClickHouse: `tiergate consumer`.

An event is deleted from its outbox only after ClickHouse acknowledged it, so a crash anywhere ships it again and
ClickHouse deduplicates. Outboxes whose gateway is dead are adopted: what was under way becomes `lost`, and the emptied
folder is removed. With Kafka, the same events pass through `producer` before they reach the store.
"""

import logging
import signal
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from typing import Protocol

from gateway.metering.folders import OwnedFolder, list_folders, take_orphan
from gateway.metering.journal import Journal
from gateway.metering.rollups.keeper import keeping_rollups
from gateway.metering.shipper import NothingTaken, Shipper
from gateway.metering.store import StoreUnavailable, UsageStore

_log = logging.getLogger(__name__)

BATCH = 5000
POLL_S = 0.2
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_FAILURES_TO_REPORT = 10
_PATIENCE_S = 2.0
"""ClickHouse may start a moment later than we do; away for longer is worth a line."""


class ConsumerSettings(Protocol):
    @property
    def data_dir(self) -> Path: ...
    @property
    def clickhouse_url(self) -> str | None: ...
    @property
    def usage_events_kept_days(self) -> int | None: ...
    @property
    def usage_hours_kept_days(self) -> int | None: ...
    @property
    def usage_days_kept_days(self) -> int | None: ...


def run(settings: ConsumerSettings) -> int:
    """Ship until SIGTERM or SIGINT; the exit status."""
    if not settings.clickhouse_url:
        _log.error("TIERGATE_CLICKHOUSE_URL is not set: usage waits in the outboxes of %s", settings.data_dir)
        return 2
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    store = UsageStore(settings.clickhouse_url)
    try:
        with keeping_rollups(settings, stop):
            Consumer(settings.data_dir, store).run(stop)
    finally:
        store.close()
    return 0


class Consumer:
    def __init__(self, data_dir: Path, store: UsageStore, *, batch: int = BATCH) -> None:
        self._data_dir = data_dir
        self._store = store
        self._shipper = Shipper(store)
        self._batch = batch
        self._failures: Counter[Path] = Counter()
        """Rounds in a row in which a folder could not be read."""

    def run(self, stop: threading.Event) -> None:
        """Ship until `stop` is set; while ClickHouse is away, try again at growing intervals."""
        pause_s = away_s = 0.0
        while not stop.wait(pause_s or POLL_S):
            try:
                self._store.prepare()
                self.ship()
            except StoreUnavailable as error:
                if away_s <= _PATIENCE_S < away_s + pause_s:
                    _log.warning("ClickHouse takes no usage, which waits in the outboxes: %s", error)
                away_s += pause_s
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            else:
                if away_s > _PATIENCE_S:
                    _log.info("ClickHouse takes usage again")
                pause_s = away_s = 0.0

    def ship(self) -> int:
        """Ship everything that is closed by now; the number of events. Raises StoreUnavailable."""
        num_shipped, refusal = 0, None
        for path in list_folders(self._data_dir):
            try:
                num_shipped += self._ship_folder(path)
            except NothingTaken as error:
                # The other folders may hold rows that pass, and so prove which are at fault.
                refusal = error
        if refusal is not None:
            raise refusal
        return num_shipped

    def _ship_folder(self, path: Path) -> int:
        try:
            orphan = take_orphan(path)
            num_shipped = self._ship_orphan(orphan) if orphan is not None else self._ship_live(path)
        except (sqlite3.Error, OSError) as error:
            # Once or twice: a gateway that is just starting or stopping. More often: a disk or a permission.
            self._failures[path] += 1
            if self._failures[path] == _FAILURES_TO_REPORT:
                _log.warning("cannot ship the usage in %s, still trying: %s", path, error)
            return 0
        self._failures.pop(path, None)
        return num_shipped

    def _ship_live(self, path: Path) -> int:
        journal = Journal.open(path, must_exist=True)
        try:
            return self._ship_journal(journal)
        finally:
            journal.close()

    def _ship_orphan(self, folder: OwnedFolder) -> int:
        is_empty = False
        try:
            journal = Journal.open(folder.path)
            try:
                num_lost = journal.close_lost()
                if num_lost:
                    _log.warning("%s died with %d requests under way; they are billed as lost", folder.path, num_lost)
                num_shipped = self._ship_journal(journal)
                is_empty = journal.is_empty()
            finally:
                journal.close()
        finally:
            if is_empty:
                folder.remove()
            else:
                folder.release()
        return num_shipped

    def _ship_journal(self, journal: Journal) -> int:
        num_shipped = 0
        while closed := journal.read_closed(self._batch):
            self._shipper.ship(journal, closed)
            num_shipped += len(closed)
            if len(closed) < self._batch:
                break
        return num_shipped
