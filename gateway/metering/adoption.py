"""Taking over the outbox of a dead gateway: what it left under way is billed as lost, and its limits are told."""

from pathlib import Path

from gateway.limits.unsettled import write_unsettled
from gateway.metering.folders import OwnedFolder, list_folders, take_orphan
from gateway.metering.journal import Journal

_TOLD = "unsettled-written"
_MOST = 60_000
"""More than a gateway has under way; older events were settled long ago."""


def adopt_orphans(data_dir: Path) -> int:
    """Close requests that dead incarnations left under way, as `lost` with the tokens known. Returns their number.

    The folders stay for the consumer, which ships and removes them.
    """
    num_lost = 0
    for path in list_folders(data_dir):
        folder = take_orphan(path)
        if folder is not None:
            num_lost += _close_lost(folder)
            folder.release()
    return num_lost


def _close_lost(folder: OwnedFolder) -> int:
    journal = Journal.open(folder.path)
    try:
        return adopt(folder, journal)
    finally:
        journal.close()


def adopt(folder: OwnedFolder, journal: Journal) -> int:
    """How many requests were under way. Raises sqlite3.Error or OSError; then it can be tried again."""
    num_lost = len(journal.close_lost())
    told = folder.path / _TOLD
    if not told.exists():
        # Also those that ended before the gateway died, whose settlement may not have reached Redis.
        write_unsettled(folder.path.parents[1], folder.path.name, journal.read_newest(_MOST))
        told.touch()
    return num_lost
