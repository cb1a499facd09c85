"""The lease under which one gateway process at a time runs a batch. Every write of a result checks it."""

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import CursorResult, Update, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.batches.models import LIVE, Batch
from gateway.domain.batches.service import NEVER
from gateway.domain.keys.models import ApiKey

LEASE = timedelta(seconds=10)
"""How long a batch waits for another process after its own process died."""


class LeaseLost(Exception):
    """Another process runs the batch now, or the batch is over."""


async def take_batch(sessions: Sessions, holder: str, *, busy: Collection[UUID], now: datetime) -> Batch | None:
    """Take the oldest batch that no process runs. Batches of tenants that are not `busy` go first.

    busy: tenants with batches that this process already runs. None if there is no free batch."""
    free = select(Batch).where(Batch.status.in_(LIVE), Batch.held_until < now).order_by(Batch.id).limit(100)
    async with sessions() as session:
        found = list(await session.scalars(free))
    for batch in sorted(found, key=lambda each: each.tenant_id in busy):
        async with sessions.begin() as session:
            taken = await session.execute(
                update(Batch)
                .where(Batch.id == batch.id, Batch.held_until < now, Batch.status.in_(LIVE))
                .values(holder=holder, held_until=now + LEASE)
            )
        if _num_rows(taken) == 1:
            return batch
    return None


async def renew(sessions: Sessions, batch_id: UUID, holder: str, *, now: datetime) -> Batch:
    """Renew the lease and return the current batch. Raises LeaseLost."""
    async with sessions.begin() as session:
        await touch(session, held(batch_id, holder).values(held_until=now + LEASE))
        batch = await session.get(Batch, batch_id, populate_existing=True)
    assert batch is not None
    return batch


async def release(sessions: Sessions, holder: str) -> None:
    """Release all batches of this process to others."""
    async with sessions.begin() as session:
        await session.execute(
            update(Batch).where(Batch.holder == holder, Batch.status.in_(LIVE)).values(held_until=NEVER)
        )


def held(batch_id: UUID, holder: str) -> Update:
    return update(Batch).where(Batch.id == batch_id, Batch.holder == holder, Batch.status.in_(LIVE))


async def touch(session: AsyncSession, change: Update) -> None:
    """Execute an update of a batch that is `held`. Raises LeaseLost."""
    if _num_rows(await session.execute(change)) != 1:
        raise LeaseLost


async def prefix_of_key(sessions: Sessions, key_id: UUID) -> str:
    async with sessions() as session:
        prefix = await session.scalar(select(ApiKey.prefix).where(ApiKey.id == key_id))
    assert prefix is not None, "keys are revoked, never deleted"
    return prefix


def _num_rows(result: object) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount
