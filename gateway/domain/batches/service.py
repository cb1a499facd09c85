"""The operations on batches that clients have: create, read, list, cancel."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.batches.models import LIVE, Batch
from gateway.domain.files.service import get_file
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal
from gateway.http.errors import Conflict, InvalidRequest, LimitReached, NotFound
from protocol.ids import new_id

PREFIX = "batch_"
WINDOW = timedelta(hours=24)
NEVER = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def batch_name(batch_id: UUID) -> str:
    """The id that clients see."""
    return PREFIX + batch_id.hex


def parse_batch_id(text: str) -> UUID:
    """Raises NotFound if the text is not a batch id."""
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        return UUID(hex=text.removeprefix(PREFIX))
    except ValueError:
        raise NotFound("there is no such batch") from None


def batches_of(tenant_id: UUID) -> Select[Batch]:
    return select(Batch).where(Batch.tenant_id == tenant_id)


async def get_batch(session: AsyncSession, tenant_id: UUID, batch_id: UUID) -> Batch:
    """Raises NotFound, also for another tenant's batch."""
    found = await session.scalar(batches_of(tenant_id).where(Batch.id == batch_id))
    if found is None:
        raise NotFound("there is no such batch")
    return found


async def create_batch(
    sessions: Sessions,
    principal: Principal,
    *,
    endpoint: str,
    input_file_id: UUID,
    completion_window: str,
    notes: dict[str, str] | None,
    output_lasts_s: int,
    max_live: int,
    now: datetime,
) -> Batch:
    """Raises NotFound for a missing file, InvalidRequest for a file that is not for batches, and LimitReached if too
    many batches are under way."""
    batch = Batch(
        id=new_id(now),
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        endpoint=endpoint,
        input_file_id=input_file_id,
        completion_window=completion_window,
        notes=notes,
        output_lasts_s=output_lasts_s,
        status="validating",
        num_lines=0,
        num_completed=0,
        num_failed=0,
        created_at=now,
        expires_at=now + WINDOW,
        holder="",
        held_until=NEVER,
    )
    async with sessions.begin() as session:
        # The file must not be deleted meanwhile.
        await take_lock(session, "files")
        file = await get_file(session, principal.tenant_id, input_file_id, now=now)
        if file.purpose != "batch":
            message = "input_file_id: this file was not uploaded with the purpose `batch`"
            raise InvalidRequest(message, param="input_file_id")
        live = select(func.count()).select_from(Batch)
        live = live.where(Batch.tenant_id == principal.tenant_id, Batch.status.in_(LIVE))
        if (await session.scalar(live) or 0) >= max_live:
            raise LimitReached(
                f"{max_live} of your batches are under way, which is the limit; wait for one to end, or cancel one",
                retry_after_s=60,
                code="batches",
                extra_headers={},
            )
        session.add(batch)
    return batch


async def cancel_batch(sessions: Sessions, tenant_id: UUID, batch_id: UUID, *, now: datetime) -> Batch:
    """Results that exist already are kept. Raises NotFound, and Conflict for a batch that has ended."""
    async with sessions.begin() as session:
        batch = await session.scalar(batches_of(tenant_id).where(Batch.id == batch_id).with_for_update())
        if batch is None:
            raise NotFound("there is no such batch")
        if batch.status in ("validating", "in_progress"):
            batch.status, batch.cancelling_at = "cancelling", now
        elif batch.status not in ("cancelling", "cancelled"):
            raise Conflict(f"this batch is {batch.status}; only one that runs can be cancelled")
    return batch
