"""A tenant's usage so far, for limits whose state Redis has lost: ClickHouse plus the outboxes of this machine."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from uuid import UUID

from gateway.billing.waiting import Whose, waiting
from gateway.http.errors import Unavailable
from gateway.limits.ledger import LedgerAway, Used
from gateway.metering.queries import UsageQueries
from gateway.metering.windows import Window, day_and_month

_NUM_READERS = 2
_NICENESS = 10
"""Of the threads that read outboxes, at least, so that a long backlog takes a tenth of a busy core from requests, not
half."""


class UsageLedger:
    """An event that is moving from an outbox to ClickHouse may count twice, but is not missed.

    With Kafka, events that are in Kafka at the moment are missed (docs/metering.md)."""

    def __init__(
        self,
        queries: UsageQueries,
        *,
        data_dir: Path,
        has_clickhouse: bool,
        written: Callable[[], Awaitable[None]],
        pools: Mapping[UUID, str] | None = None,
    ) -> None:
        """written: waits until every request that ended in this process is in its outbox on disk. pools: accounts that
        belong to a pool instead of a tenant."""
        self._written = written
        self._pools = pools or {}
        self._queries = queries
        self._data_dir = data_dir
        self._has_clickhouse = has_clickhouse
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="ledger", initializer=_be_nice)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        """Tokens of the day and cost of the month. Raises LedgerAway.

        Reads the outboxes first: an event shipped meanwhile is then seen in both places instead of in neither."""
        # The whole day and month, because other requests may have been received after the one that asks.
        day, month = day_and_month(now)
        pool = self._pools.get(tenant_id)
        whose = _whose(tenant_id, scope) if pool is None else Whose(None, pool=pool)
        # Requests that ended here count in the limiter until this reading, which must then find them.
        await self._written()
        try:
            tokens, cost_nanousd = await asyncio.get_running_loop().run_in_executor(
                self._readers, waiting, self._data_dir, whose, day, month
            )
            if self._has_clickhouse:
                today, this_month = await asyncio.gather(self._totals(day, whose), self._totals(month, whose))
                tokens += int(today["prompt_tokens"]) + int(today["completion_tokens"])
                cost_nanousd += int(this_month["cost_nanousd"])
        except (Unavailable, sqlite3.Error, OSError) as error:
            raise LedgerAway(str(error)) from error
        return Used(tokens, cost_nanousd)

    async def _totals(self, window: Window, whose: Whose) -> dict[str, int]:
        return await self._queries.exact_totals(
            window, tenant_id=whose.tenant_id, key_id=whose.key_id, user_id=whose.user_id, pool=whose.pool
        )


def _whose(tenant_id: UUID, scope: str) -> Whose:
    kind, _, name = scope.partition(":")
    return Whose(str(tenant_id), key_id=name if kind == "key" else None, user_id=name if kind == "user" else None)


def _be_nice() -> None:
    """Give way to other threads. In Linux niceness is a property of a thread; elsewhere it would slow the process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Only the privileged may lower it again.
        os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
