"""Limiters over a real Valkey, and a ledger that says what a test tells it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

from gateway.domain.catalog import TierTerms
from gateway.limits.ledger import LedgerAway
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Admission
from gateway.redis_client import connect_redis

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


@dataclass
class KnownLedger:
    tokens: int = 0
    nanousd: int = 0
    is_away: bool = False
    num_calls: int = 0

    async def tokens_today(self, tenant_id: UUID, now: datetime) -> int:
        return self._answer(self.tokens)

    async def spent_this_month(self, tenant_id: UUID, now: datetime) -> int:
        return self._answer(self.nanousd)

    def _answer(self, value: int) -> int:
        self.num_calls += 1
        if self.is_away:
            raise LedgerAway
        return value


@asynccontextmanager
async def open_limiter(
    url: str, *, ledger: KnownLedger | None = None, window_s: float = 60.0, lease_s: float = 15.0
) -> AsyncIterator[Limiter]:
    redis = connect_redis(url, deadline_s=5.0)
    try:
        yield Limiter(redis, ledger or KnownLedger(), deadline_s=5.0, window_s=window_s, lease_s=lease_s)
    finally:
        await redis.aclose()


def admission(tenant_id: UUID, tier: TierTerms, *, tokens: int = 1, cost_nanousd: int = 0) -> Admission:
    return Admission(str(uuid4()), tenant_id, tier, tokens, cost_nanousd, NOW)
