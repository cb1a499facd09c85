"""Ends a batch: its results become files, in one transaction with its final status."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID, uuid5

from sqlalchemy import delete, func, select

from gateway.artifacts.files import FileStore
from gateway.batches.holding import held, touch
from gateway.database import Sessions
from gateway.domain.batches.models import Batch, BatchResult, BatchStatus
from gateway.domain.batches.service import batch_name
from gateway.domain.files.models import StoredFile

PAGE = 200


async def write_outputs(
    sessions: Sessions, store: FileStore, batch: Batch, holder: str, *, status: BatchStatus, now: datetime
) -> None:
    """Write the output and error files and end the batch. Idempotent after a crash. Raises LeaseLost or Unavailable."""
    output = await _write(sessions, store, batch, is_ok=True, now=now)
    errors = await _write(sessions, store, batch, is_ok=False, now=now)
    async with sessions.begin() as session:
        change = held(batch.id, holder).values(
            {
                "status": status,
                f"{status}_at": now,
                "output_file_id": output.id if output is not None else None,
                "error_file_id": errors.id if errors is not None else None,
            }
        )
        await touch(session, change)
        session.add_all(file for file in (output, errors) if file is not None)
        await session.execute(delete(BatchResult).where(BatchResult.batch_id == batch.id))


async def _write(
    sessions: Sessions, store: FileStore, batch: Batch, *, is_ok: bool, now: datetime
) -> StoredFile | None:
    name = "output" if is_ok else "error"
    count = select(func.count()).where(BatchResult.batch_id == batch.id, BatchResult.is_ok == is_ok)
    async with sessions() as session:
        if not await session.scalar(count):
            return None
    file_id = uuid5(batch.id, name)
    async with store.staging(_lines(sessions, batch.id, is_ok=is_ok)) as staged:
        await store.publish(staged, file_id)
    return StoredFile(
        id=file_id,
        tenant_id=batch.tenant_id,
        purpose="batch_output",
        filename=f"{batch_name(batch.id)}_{name}.jsonl",
        size_bytes=staged.size_bytes,
        digest=staged.digest,
        created_at=now,
        expires_at=now + timedelta(seconds=batch.output_lasts_s),
        is_ready=True,
    )


async def _lines(sessions: Sessions, batch_id: UUID, *, is_ok: bool) -> AsyncIterator[bytes]:
    """The result lines in input order, a page at a time."""
    last = 0
    while True:
        query = select(BatchResult.line, BatchResult.content)
        query = query.where(BatchResult.batch_id == batch_id, BatchResult.is_ok == is_ok, BatchResult.line > last)
        async with sessions() as session:
            rows = (await session.execute(query.order_by(BatchResult.line).limit(PAGE))).all()
        if not rows:
            return
        last = rows[-1][0]
        yield b"".join([content + b"\n" for _, content in rows])
