"""Empties the outboxes of a machine into whatever takes their events: Kafka, or ClickHouse itself.

Outboxes whose gateway is dead are adopted: what was under way becomes `lost`, and the emptied folder is removed.
"""

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gateway.metering.folders import OwnedFolder, list_folders, take_orphan
from gateway.metering.journal import Journal

_log = logging.getLogger(__name__)

_FAILURES_TO_REPORT = 10


class TargetUnavailable(Exception):
    """What takes the events is away or takes none now; they wait in the outboxes."""


class Blocked(TargetUnavailable):
    """One folder's events are not taken; those of the others may be."""


class OutboxDrain:
    def __init__(self, data_dir: Path, ship: Callable[[Journal], int]) -> None:
        """`ship` moves all that is closed in a journal and tells how many events; it may raise TargetUnavailable."""
        self._data_dir = data_dir
        self._ship = ship
        self._failures: Counter[Path] = Counter()
        """Rounds in a row in which a folder could not be read."""

    def run_once(self) -> int:
        """Ship everything that is closed by now; the number of events. Raises TargetUnavailable."""
        num_shipped, refusal = 0, None
        for path in list_folders(self._data_dir):
            try:
                num_shipped += self._ship_folder(path)
            except Blocked as error:
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
            return self._ship(journal)
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
