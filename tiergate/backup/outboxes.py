"""Outboxes of usage events: each is copied as of one moment. On restore they are placed in a folder that no consumer
reads, until everything is restored.
"""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from gateway.metering.folders import list_folders, outbox_root, restoring_folder, take_orphan
from gateway.metering.journal import JOURNAL_FILE
from tiergate.backup.archive import ArchiveWriter
from tiergate.backup.manifest import OUTBOXES
from tiergate.failure import Failure

_BLOCK = 1 << 20
_INCARNATION = re.compile(r"[0-9A-Za-z_-]{1,64}")


def dump_outboxes(data_dir: Path, archive: ArchiveWriter, drafts: Path) -> dict[str, int]:
    """Add all outboxes to the archive. Raises sqlite3.Error or OSError.

    Returns, for each incarnation, the number of waiting events and of requests under way, added up.
    """
    found = {}
    for folder in list_folders(data_dir):
        draft = drafts / folder.name
        try:
            num_events = _copy(folder / JOURNAL_FILE, draft)
        except sqlite3.Error:
            if (folder / JOURNAL_FILE).exists():
                raise
            # The outbox was emptied and removed meanwhile.
            num_events = None
        if num_events is not None:
            found[folder.name] = num_events
            archive.add(f"{OUTBOXES}{folder.name}.sqlite", draft.stat().st_size, _blocks(draft))
        draft.unlink(missing_ok=True)
    return found


def place_outbox(data_dir: Path, member: str, content: IO[bytes]) -> str:
    """Write the outbox durably into the restoring folder, and return its incarnation."""
    incarnation = member.removeprefix(OUTBOXES).removesuffix(".sqlite")
    if not _INCARNATION.fullmatch(incarnation):
        raise Failure(f"{member} is no outbox; the backup was not written by tiergate")
    folder = restoring_folder(data_dir) / incarnation
    folder.mkdir(mode=0o700)
    with (folder / JOURNAL_FILE).open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)
        file.flush()
        os.fsync(file.fileno())
    return incarnation


def make_live(data_dir: Path) -> None:
    """Move all placed outboxes to where consumers look. May be repeated after a restore was killed here."""
    root, placed = outbox_root(data_dir), restoring_folder(data_dir)
    root.mkdir(mode=0o700, exist_ok=True)
    for folder in sorted(placed.iterdir()):
        if (root / folder.name).exists():
            shutil.rmtree(folder)
        else:
            folder.rename(root / folder.name)
    _sync(root)
    placed.rmdir()
    _sync(data_dir)


def check_no_gateway(data_dir: Path) -> None:
    """Raises Failure while a gateway owns an outbox here."""
    for folder in list_folders(data_dir):
        owned = take_orphan(folder)
        if owned is None and folder.exists():
            raise Failure(f"a gateway or a consumer is running on {data_dir}; stop it until the restore is through")
        if owned is not None:
            owned.release()


def check_no_outbox(data_dir: Path, *, but: Iterable[str] = ()) -> None:
    """Raises Failure if usage of another installation waits here. but: incarnations that may be here."""
    others = {folder.name for folder in list_folders(data_dir)} - set(but)
    if others:
        raise Failure(
            f"{outbox_root(data_dir)} holds usage of another installation; give a new --data-dir, or let its consumer"
            " ship it first"
        )


def _copy(journal: Path, draft: Path) -> int | None:
    """The number of waiting events and of requests under way, added up; None if the outbox has no tables yet."""
    uri = f"{journal.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=10)) as source, closing(sqlite3.connect(draft)) as copy:
        # Copied in one step, so as of one moment, while writers go on.
        source.backup(copy)
        if copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'refused'").fetchone() is None:
            return None
        count = "SELECT (SELECT count(*) FROM closed) + (SELECT count(*) FROM under_way)"
        return int(copy.execute(count).fetchone()[0])


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
