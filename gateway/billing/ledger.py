"""What a tenant used so far, for limits that Redis has lost: ClickHouse plus what still waits in the outboxes here."""

import asyncio
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from uuid import UUID

from gateway.billing.waiting import Whose, waiting
from gateway.http.errors import Unavailable
from gateway.limits.ledger import LedgerAway, Used
from gateway.metering.queries import UsageQueries
from gateway.metering.windows import Window, month_until


class UsageLedger:
    """An event on its way from an outbox to ClickHouse may count twice, never not at all."""

    def __init__(
        self,
        queries: UsageQueries,
        *,
        data_dir: Path,
        has_clickhouse: bool,
        pools: Mapping[UUID, str] | None = None,
    ) -> None:
        """pools: accounts that are a pool's and not a tenant's."""
        self._pools = pools or {}
        self._queries = queries
        self._data_dir = data_dir
        self._has_clickhouse = has_clickhouse

    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        """The outboxes are read first: what is shipped meanwhile is then seen in both, not in none."""
        month = month_until(now)
        day = Window(now.replace(hour=0, minute=0, second=0, microsecond=0), month.end)
        pool = self._pools.get(tenant_id)
        whose = _whose(tenant_id, scope) if pool is None else Whose(None, pool=pool)
        try:
            tokens, cost_nanousd = await asyncio.to_thread(waiting, self._data_dir, whose, day=day, month=month)
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
