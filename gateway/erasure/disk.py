"""Clears what deleting leaves on disk: free pages and logs of SQLite's files, and the append-only file of Redis.

PostgreSQL and ClickHouse do this by themselves (autovacuum, merges), and so does a topic, by its retention.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import make_url

from gateway.erasure.outboxes import scrub, scrub_outboxes
from gateway.erasure.redis_keys import rewrite_log
from gateway.erasure.subject import Counts, Stores, Subject, Waits

_BUSY_S = 10.0


async def scrub_files(stores: Stores, subject: Subject) -> Counts:
    counts = {"outbox_files": await asyncio.to_thread(scrub_outboxes, stores.data_dir)}
    url = make_url(stores.sql_url)
    if url.get_backend_name() == "sqlite" and url.database:
        await asyncio.to_thread(_scrub_database, Path(url.database))
        counts["database_files"] = 1
    counts["redis_logs"] = int(await rewrite_log(stores))
    return counts


def _scrub_database(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)) as connection:
            scrub(connection)
    except sqlite3.Error as error:
        raise Waits("database file", str(error)) from error
