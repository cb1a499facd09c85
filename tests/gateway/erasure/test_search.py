"""A search for words reads SQLite's files while this process writes them, and must not cost it their locks."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.erasure.search import _in_files

_COUNT = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(*c.execute('SELECT count(*) FROM t').fetchone())"


async def num_rows_seen_outside(path: Path) -> int:
    """By a process that opens the file and closes it again, as a backup does."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _COUNT, path, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    return int(told)


async def test_what_is_written_after_a_search_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "outbox" / "journal.db"
    path.parent.mkdir()
    stores: Any = SimpleNamespace(data_dir=tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (word TEXT)")
        connection.execute("INSERT INTO t VALUES ('zyxomma')")
        assert await _in_files(stores, ["zyxomma", "zwieback"]) == {"files.outbox/journal.db-wal": 1}
        assert await num_rows_seen_outside(path) == 1
        connection.execute("INSERT INTO t VALUES ('zwieback')")
        assert await num_rows_seen_outside(path) == 2


async def test_words_across_blocks_are_found_and_clickhouses_files_are_not_looked_into(tmp_path: Path) -> None:
    for place, content in (
        ("a", b"x" * (2**20 - 3) + b"zyxomma"),
        ("clickhouse/b", b"zyxomma"),
        ("c", b"zyxo" + b"x" * 2**20 + b"mma"),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(content)
    stores: Any = SimpleNamespace(data_dir=tmp_path)
    assert await _in_files(stores, ["zyxomma"]) == {"files.a": 1}
