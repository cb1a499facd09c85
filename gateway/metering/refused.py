"""How many usage events wait aside in the outboxes because ClickHouse refuses them: for `/metrics`."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal

_log = logging.getLogger(__name__)

CACHE_S = 10.0


class RefusedRows:
    """Counts over all outboxes below `data_dir`, this gateway's and others', at most every `CACHE_S`."""

    def __init__(self, data_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._data_dir = data_dir
        self._clock = clock
        self._count = 0
        self._counted_at = float("-inf")

    async def count(self) -> int:
        """Off the event loop, because the disk may be slow."""
        if self._clock() - self._counted_at >= CACHE_S:
            # Before the reading: a second scrape meanwhile takes the last count.
            self._counted_at = self._clock()
            self._count = await asyncio.to_thread(count_refused, self._data_dir)
        return self._count


def count_refused(data_dir: Path) -> int:
    return sum(map(_count_in, list_folders(data_dir)))


def _count_in(folder: Path) -> int:
    try:
        journal = Journal.open(folder, must_exist=True)
    except sqlite3.Error as error:
        # Just made, just removed, or broken, which the consumer reports.
        _log.debug("cannot count refused events in %s: %s", folder, error)
        return 0
    try:
        return journal.count_refused()
    finally:
        journal.close()
