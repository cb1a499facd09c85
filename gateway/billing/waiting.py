"""Sums the usage that waits in the outboxes of this machine.

SQLite sums it itself, read-only and without blocking the event loop's thread. A file that cannot be read is an error,
never zero.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE
from gateway.metering.windows import Window

READ_TIMEOUT_S = 5.0
_SUMS = """
SELECT coalesce(sum(tokens) FILTER (WHERE at >= :day), 0), coalesce(sum(cost), 0)
FROM (
    SELECT json_extract(event, '$.tenant_id') AS tenant_id, json_extract(event, '$.key_id') AS key_id,
        json_extract(event, '$.user_id') AS user_id, json_extract(event, '$.pool') AS pool,
        julianday(json_extract(event, '$.timestamp')) AS at,
        json_extract(event, '$.prompt_tokens') + json_extract(event, '$.completion_tokens') AS tokens,
        json_extract(event, '$.cost_nanousd') AS cost
    FROM (SELECT CAST(event AS TEXT) AS event FROM closed)
    WHERE (:tenant_id IS NULL OR instr(event, :tenant_id)) AND json_valid(event)
)
WHERE (:tenant_id IS NULL OR tenant_id = :tenant_id) AND (:pool IS NULL OR pool = :pool)
    AND at >= :month AND at < :end AND (:key_id IS NULL OR key_id = :key_id)
    AND (:user_id IS NULL OR user_id = :user_id)
"""


@dataclass(frozen=True, slots=True)
class Whose:
    """Selects usage: of a tenant, or of one of its keys or end users, or of all tenants in a pool."""

    tenant_id: str | None
    key_id: str | None = None
    user_id: str | None = None
    pool: str | None = None


def waiting(data_dir: Path, whose: Whose, day: Window, month: Window) -> tuple[int, int]:
    """Tokens of the day and cost of the month. Raises sqlite3.Error or OSError if an outbox cannot be read."""
    parameters = {
        "tenant_id": whose.tenant_id,
        "key_id": whose.key_id,
        "user_id": whose.user_id,
        "pool": whose.pool,
        "day": _julian(day),
        "month": _julian(month),
        "end": _julian(Window(month.end, month.end)),
    }
    tokens = cost_nanousd = 0
    for path in _journals(data_dir):
        try:
            more_tokens, more_nanousd = _sum(path, parameters)
        except sqlite3.Error:
            if path.exists():
                raise
            # The consumer has just removed it: its events are in ClickHouse, which is queried after this.
            continue
        tokens += more_tokens
        cost_nanousd += more_nanousd
    return tokens, cost_nanousd


def _journals(data_dir: Path) -> Iterator[Path]:
    for folder in list_folders(data_dir):
        path = folder / JOURNAL_FILE
        # A gateway that is just starting has an empty folder.
        if path.exists():
            yield path


def _sum(path: Path, parameters: dict[str, str | float | None]) -> tuple[int, int]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=READ_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA query_only = ON")
        tokens, cost_nanousd = connection.execute(_SUMS, parameters).fetchone()
    return int(tokens), int(cost_nanousd)


def _julian(window: Window) -> float:
    """The window's start as a Julian day, as SQLite's julianday() returns it."""
    return window.start.timestamp() / 86_400 + 2_440_587.5
