"""Limiters with a real Valkey, and a ledger whose values a test sets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from gateway.domain.catalog import TierTerms
from gateway.domain.limits import LimitScope
from gateway.limits.ledger import Ledger, LedgerAway, Used
from gateway.limits.limiter import Limiter
from gateway.limits.limiter import open_limiter as open_bare_limiter
from gateway.limits.reservation import Admission
from gateway.main import end_tasks

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


@dataclass
class KnownLedger:
    tokens: int = 0
    nanousd: int = 0
    is_away: bool = False
    num_calls: int = 0

    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        self.num_calls += 1
        if self.is_away:
            raise LedgerAway
        return Used(self.tokens, self.nanousd)


@asynccontextmanager
async def open_limiter(
    url: str, *, ledger: Ledger | None = None, deadline_s: float = 5.0, **options: Any
) -> AsyncIterator[Limiter]:
    """A limiter with its loops running, and with a deadline that even a busy machine meets."""
    async with (
        open_bare_limiter(url, ledger or KnownLedger(), deadline_s=deadline_s, **options) as limiter,
        asyncio.TaskGroup() as group,
    ):
        loops = [group.create_task(limiter.run_forever())]
        try:
            yield limiter
        finally:
            await end_tasks(loops)


def admission(
    tenant_id: UUID, tier: TierTerms, *inner_scopes: LimitScope, tokens: int = 1, cost_nanousd: int = 0
) -> Admission:
    return Admission(str(uuid4()), tenant_id, tier, tokens, cost_nanousd, NOW, inner_scopes)
