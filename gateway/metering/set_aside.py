"""Events in the outboxes that nothing takes: for a person to look at, and to send once more after a correction."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE, Journal


def list_set_aside(data_dir: Path) -> list[tuple[bytes, str]]:
    """Events and reasons. Raises sqlite3.Error."""
    return [row for journal in _journals(data_dir) for row in journal.read_refused()]


def replay_set_aside(data_dir: Path) -> int:
    """They wait to be shipped again; how many. Raises sqlite3.Error."""
    return sum(journal.replay_refused() for journal in _journals(data_dir))


def _journals(data_dir: Path) -> Iterator[Journal]:
    for folder in list_folders(data_dir):
        if (folder / JOURNAL_FILE).exists():
            with closing(Journal.open(folder, must_exist=True)) as journal:
                yield journal
