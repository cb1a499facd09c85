"""Erasure in the outboxes of this data directory: events are delivered first, then nothing stays in the files."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from gateway.erasure.subject import Counts, Stores, Subject, Waits
from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE

_BUSY_S = 10.0
T = TypeVar("T")
_TENANT = "CAST(event AS TEXT) ->> '$.tenant_id' = :tenant"
_USER = " AND CAST(event AS TEXT) ->> '$.user_id' = :user"


async def empty_outboxes(stores: Stores, subject: Subject) -> Counts:
    """Raises Waits until everything is delivered. Events that ClickHouse refused for good, which an operator would have
    had to correct, are removed."""
    num_waiting = await asyncio.to_thread(count_events, stores.data_dir, subject.tenant, subject.user)
    if num_waiting and stores.clickhouse_url is None:
        raise Waits("clickhouse", f"TIERGATE_CLICKHOUSE_URL is not set, so {num_waiting} usage events stay")
    if num_waiting:
        raise Waits("outbox", f"{num_waiting} usage events are to be delivered")
    num_counts = await asyncio.to_thread(_count_counts, stores.data_dir, subject)
    if num_counts and stores.clickhouse_url is not None:
        raise Waits("outbox", "counts of admissions are to be delivered")
    return {"events_set_aside": await asyncio.to_thread(_forget, stores.data_dir, subject)}


def count_events(data_dir: Path, tenant: str, user: str | None) -> int:
    """How many of the subject's events are under way or closed. Raises Waits."""
    values = {"tenant": tenant, "user": user}

    def count(journal: sqlite3.Connection) -> int:
        queries = (f"SELECT count(*) FROM {table} WHERE {_where(user)}" for table in ("under_way", "closed"))
        return sum(int(journal.execute(query, values).fetchone()[0]) for query in queries)

    return sum(_from_each(data_dir, count))


def _count_counts(data_dir: Path, subject: Subject) -> int:
    """How many counts of a tenant, which gateways report every ten seconds, are not delivered yet."""
    values = {"tenant": subject.tenant}

    def count(journal: sqlite3.Connection) -> int:
        untold = "SELECT count(*) FROM admissions WHERE tenant_id = :tenant AND told < num_admitted + num_closed"
        unsent = "SELECT count(*) FROM counts WHERE instr(CAST(record AS TEXT), :tenant)"
        return sum(int(journal.execute(query, values).fetchone()[0]) for query in (untold, unsent))

    return sum(_from_each(data_dir, count)) if subject.user is None else 0


def scrub_outboxes(data_dir: Path) -> int:
    """Leave no deleted bytes in the files. Returns how many files there are. Raises Waits."""
    return len(_from_each(data_dir, scrub))


def scrub(connection: sqlite3.Connection) -> None:
    """Rewrite the file and truncate its log, because SQLite leaves deleted rows in free pages and in the log.

    Raises sqlite3.OperationalError while other connections prevent it.
    """
    connection.execute("VACUUM")
    is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_busy:
        raise sqlite3.OperationalError("somebody still reads an older state of the file")


def _forget(data_dir: Path, subject: Subject) -> int:
    values = {"tenant": subject.tenant, "user": subject.user}

    def forget(journal: sqlite3.Connection) -> int:
        if subject.user is None:
            # Delivered counts stay in the table for a week, to be added to.
            told = "told = num_admitted + num_closed"
            journal.execute(f"DELETE FROM admissions WHERE tenant_id = :tenant AND {told}", values)
        return journal.execute(f"DELETE FROM refused WHERE {_where(subject.user)}", values).rowcount

    return sum(_from_each(data_dir, forget))


def _where(user: str | None) -> str:
    return _TENANT if user is None else _TENANT + _USER


def _from_each(data_dir: Path, call: Callable[[sqlite3.Connection], T]) -> list[T]:
    return [_from_one(folder, call) for folder in list_folders(data_dir) if (folder / JOURNAL_FILE).exists()]


def _from_one(folder: Path, call: Callable[[sqlite3.Connection], T]) -> T:
    uri = f"{(folder / JOURNAL_FILE).absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_S)) as connection:
            return call(connection)
    except sqlite3.Error as error:
        raise Waits(f"outbox {folder.name}", str(error)) from error
