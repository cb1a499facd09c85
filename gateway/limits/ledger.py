"""What the limiter asks of the usage ledger when Redis has lost a counter."""

from datetime import datetime
from typing import Protocol
from uuid import UUID


class LedgerAway(Exception):
    """The ledger cannot say; then nobody may assume zero."""


class Ledger(Protocol):
    """Both raise LedgerAway."""

    async def tokens_today(self, tenant_id: UUID, now: datetime) -> int: ...

    async def spent_this_month(self, tenant_id: UUID, now: datetime) -> int:
        """In 1e-9 dollars."""
        ...
