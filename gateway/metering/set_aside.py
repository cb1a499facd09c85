"""Refused events that were set aside in the outboxes: listed for a person, and sent again after a correction."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE, Journal


def list_set_aside(data_dir: Path) -> list[tuple[bytes, str]]:
    """The encoded events, each with the reason. Raises sqlite3.Error."""
    return [row for journal in _journals(data_dir) for row in journal.read_refused()]


def replay_set_aside(data_dir: Path) -> int:
    """Queue the set-aside events for shipping again; returns how many. Raises sqlite3.Error."""
    return sum(journal.replay_refused() for journal in _journals(data_dir))


def _journals(data_dir: Path) -> Iterator[Journal]:
    for folder in list_folders(data_dir):
        if (folder / JOURNAL_FILE).exists():
            with closing(Journal.open(folder, must_exist=True)) as journal:
                yield journal
