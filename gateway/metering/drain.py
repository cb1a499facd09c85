"""Drains a machine's outboxes into their target: Kafka, or ClickHouse directly.

An outbox whose gateway is dead is adopted: its open requests are closed as `lost`, and the emptied folder is removed.
"""

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gateway.metering.adoption import adopt
from gateway.metering.folders import OwnedFolder, list_folders, take_orphan
from gateway.metering.journal import Journal

_log = logging.getLogger(__name__)

_FAILURES_TO_REPORT = 10


class TargetUnavailable(Exception):
    """The target is unreachable or takes no events at the moment; they wait in the outboxes."""


class Blocked(TargetUnavailable):
    """The target does not take one folder's events, but may take those of other folders."""


class OutboxDrain:
    def __init__(self, data_dir: Path, ship: Callable[[Journal], int]) -> None:
        """`ship` moves all closed events of a journal and returns how many; it may raise TargetUnavailable."""
        self._data_dir = data_dir
        self._ship = ship
        self._failures: Counter[Path] = Counter()
        """Consecutive rounds in which a folder could not be read."""

    def run_once(self) -> int:
        """Ship every event that is closed by now; returns how many. Raises TargetUnavailable."""
        num_shipped, refusal = 0, None
        for path in list_folders(self._data_dir):
            try:
                num_shipped += self._ship_folder(path)
            except Blocked as error:
                # Go on: another folder may hold rows that pass, which proves that the refused rows are at fault.
                refusal = error
        if refusal is not None:
            raise refusal
        return num_shipped

    def _ship_folder(self, path: Path) -> int:
        try:
            orphan = take_orphan(path)
            num_shipped = self._ship_orphan(orphan) if orphan is not None else self._ship_live(path)
        except (sqlite3.Error, OSError) as error:
            # One or two failures: a gateway that is just starting or stopping. More: a disk or permission fault.
            self._failures[path] += 1
            if self._failures[path] == _FAILURES_TO_REPORT:
                _log.warning("cannot ship the usage in %s, still trying: %s", path, error)
            return 0
        self._failures.pop(path, None)
        return num_shipped

    def _ship_live(self, path: Path) -> int:
        journal = Journal.open(path, must_exist=True)
        try:
            return self._ship(journal)
        finally:
            journal.close()

    def _ship_orphan(self, folder: OwnedFolder) -> int:
        is_empty = False
        try:
            journal = Journal.open(folder.path)
            try:
                num_lost = adopt(folder, journal)
                if num_lost:
                    _log.warning("%s died with %d requests under way; they are billed as lost", folder.path, num_lost)
                num_shipped = self._ship(journal)
                is_empty = journal.is_empty()
            finally:
                journal.close()
        finally:
            if is_empty:
                folder.remove()
            else:
                folder.release()
        return num_shipped
