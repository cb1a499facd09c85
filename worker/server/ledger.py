"""Counts tokens by tenant and hour, durably: SQLite, written several times a second, so that kill -9 loses a moment.

Bills are checked against these counts, and plain counters would die with the process. Writes are not synced: the file
survives the death of the process, not that of the machine.
"""

import asyncio
import logging
import sqlite3
import time
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol import ledger as wire
from protocol.errors import ProtocolError
from protocol.ids import made_at_s
from worker.settings import SettingsError

log = logging.getLogger("tiergate.server")

FLUSH_S = 0.05
KEPT_S = 40 * 86_400
_SCHEMA = """CREATE TABLE IF NOT EXISTS ledger (
    worker_id TEXT, hour_s INTEGER, tenant_id TEXT,
    prompt_tokens INTEGER, completion_tokens INTEGER, discarded_tokens INTEGER,
    PRIMARY KEY (worker_id, hour_s, tenant_id)) WITHOUT ROWID"""
_ADD = """INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (worker_id, hour_s, tenant_id) DO UPDATE SET
prompt_tokens = prompt_tokens + excluded.prompt_tokens,
completion_tokens = completion_tokens + excluded.completion_tokens,
discarded_tokens = discarded_tokens + excluded.discarded_tokens"""


class Ledger:
    """path: None keeps it in memory. Belongs to one event loop. Raises SettingsError if the file cannot be opened."""

    def __init__(self, path: Path | None, *, worker_id: str) -> None:
        self._worker_id = worker_id
        self._pending: dict[tuple[int, str], list[int]] = {}
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=1)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = OFF")
            self._file.execute(_SCHEMA)
            self._file.execute("DELETE FROM ledger WHERE hour_s < ?", (int(time.time()) - KEPT_S,))
        except (sqlite3.Error, OSError) as error:
            raise SettingsError(f"--ledger: {path}: {error}") from error

    def note(
        self, tenant_id: str, hour_s: int, *, num_prompt: int = 0, num_told: int = 0, num_discarded: int = 0
    ) -> None:
        counts = self._pending.get((hour_s, tenant_id))
        if counts is None:
            if not self._pending:
                asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
            counts = self._pending[hour_s, tenant_id] = [0, 0, 0]
        counts[0] += num_prompt
        counts[1] += num_told
        counts[2] += num_discarded

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        try:
            self._file.execute("BEGIN")
            self._file.executemany(_ADD, ((self._worker_id, *key, *counts) for key, counts in pending.items()))
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            # Reconciliation will show how much is missing; requests go on.
            log.error("the ledger cannot be written: %s", error)
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")

    def read(self, since_s: int) -> wire.Ledger:
        self.flush()
        query = "SELECT worker_id, hour_s, tenant_id, prompt_tokens, completion_tokens, discarded_tokens FROM ledger"
        found = self._file.execute(f"{query} WHERE hour_s >= ? ORDER BY 1, 2, 3", (since_s,))
        fields = wire.LedgerRow.__struct_fields__
        return wire.Ledger(rows=tuple(wire.LedgerRow(**dict(zip(fields, row, strict=True))) for row in found))

    def close(self) -> None:
        self.flush()
        self._file.close()


def hour_of(request_id: str) -> int:
    """The start of the hour (Unix time) in which the request reached the gateway, by its id; else of this hour."""
    made_at = made_at_s(request_id)
    return (int(time.time()) if made_at is None else made_at) // 3600 * 3600


async def ledger(request: Request) -> Response:
    """`since`: Unix time; hours that begin earlier are left out."""
    since = request.query_params.get("since", "0")
    if not since.isdigit() or len(since) > 12:
        raise ProtocolError("since: send Unix time", param="since")
    found: Ledger = request.app.state.replica.ledger
    return Response(msgspec.json.encode(found.read(int(since))), media_type="application/json")
