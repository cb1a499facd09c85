"""Taking over the outbox of a dead gateway: what it left under way is billed as lost, and its limits are told."""

from gateway.limits.unsettled import write_unsettled
from gateway.metering.folders import OwnedFolder
from gateway.metering.journal import Journal

_TOLD = "unsettled-written"
_MOST = 60_000
"""More than a gateway has under way; older events were settled long ago."""


def adopt(folder: OwnedFolder, journal: Journal) -> int:
    """How many requests were under way. Raises sqlite3.Error or OSError; then it can be tried again."""
    num_lost = len(journal.close_lost())
    told = folder.path / _TOLD
    if not told.exists():
        # Also those that ended before the gateway died, whose settlement may not have reached Redis.
        write_unsettled(folder.path.parents[1], folder.path.name, journal.read_newest(_MOST))
        told.touch()
    return num_lost
