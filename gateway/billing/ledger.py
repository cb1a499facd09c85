"""What a tenant used so far, for limits that Redis has lost: ClickHouse plus what still waits in the outboxes here."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from uuid import UUID

from gateway.http.errors import Unavailable
from gateway.limits.ledger import LedgerAway
from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.metering.queries import UsageQueries
from gateway.metering.windows import Window, month_until
from protocol.usage import UsageEvent

_ALL = 2**31


class UsageLedger:
    """An event on its way from an outbox to ClickHouse may count twice, never not at all."""

    def __init__(self, queries: UsageQueries, *, data_dir: Path, has_clickhouse: bool) -> None:
        self._queries = queries
        self._data_dir = data_dir
        self._has_clickhouse = has_clickhouse

    async def tokens_today(self, tenant_id: UUID, now: datetime) -> int:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return (await self._used(tenant_id, Window(midnight, month_until(now).end)))[0]

    async def spent_this_month(self, tenant_id: UUID, now: datetime) -> int:
        return (await self._used(tenant_id, month_until(now)))[1]

    async def _used(self, tenant_id: UUID, window: Window) -> tuple[int, int]:
        """Tokens and cost. The outboxes are read first: what is shipped meanwhile is then seen in both, not in none."""
        try:
            tokens, cost_nanousd = await asyncio.to_thread(_waiting, self._data_dir, str(tenant_id), window)
            if self._has_clickhouse:
                row = await self._queries.totals(window, tenant_id=str(tenant_id))
                tokens += int(row["prompt_tokens"]) + int(row["completion_tokens"])
                cost_nanousd += int(row["cost_nanousd"])
        except (Unavailable, sqlite3.Error, OSError) as error:
            raise LedgerAway(str(error)) from error
        return tokens, cost_nanousd


def _waiting(data_dir: Path, tenant_id: str, window: Window) -> tuple[int, int]:
    tokens = cost_nanousd = 0
    for event in _closed_events(data_dir):
        if event.tenant_id == tenant_id and window.start <= event.timestamp < window.end:
            tokens += event.prompt_tokens + event.completion_tokens
            cost_nanousd += event.cost_nanousd
    return tokens, cost_nanousd


def _closed_events(data_dir: Path) -> Iterator[UsageEvent]:
    for folder in list_folders(data_dir):
        try:
            journal = Journal.open(folder, must_exist=True)
        except sqlite3.OperationalError:
            # The consumer removed the folder in this moment: all of it is in ClickHouse.
            continue
        try:
            yield from (closed.event for closed in journal.read_closed(_ALL))
        finally:
            journal.close()
