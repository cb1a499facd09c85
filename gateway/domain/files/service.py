from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.batches.models import LIVE, Batch
from gateway.domain.files.models import StoredFile
from gateway.domain.locks import take_lock
from gateway.http.errors import Conflict, Forbidden, InvalidRequest, NotFound

PREFIX = "file-"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits for all files of a tenant together."""

    num_files: int
    num_bytes: int


def file_name(file_id: UUID) -> str:
    """The id that clients see."""
    return PREFIX + file_id.hex


def parse_file_id(text: str) -> UUID:
    """Raises NotFound if the text is not a file id."""
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        return UUID(hex=text.removeprefix(PREFIX))
    except ValueError:
        raise NotFound("there is no such file") from None


def files_of(tenant_id: UUID, *, now: datetime) -> Select[StoredFile]:
    is_kept = or_(StoredFile.expires_at.is_(None), StoredFile.expires_at > now)
    return select(StoredFile).where(StoredFile.tenant_id == tenant_id, StoredFile.is_ready, is_kept)


async def get_file(session: AsyncSession, tenant_id: UUID, file_id: UUID, *, now: datetime) -> StoredFile:
    """Raises NotFound, also for another tenant's file."""
    found = await session.scalar(files_of(tenant_id, now=now).where(StoredFile.id == file_id))
    if found is None:
        raise NotFound("there is no such file")
    return found


async def reserve(sessions: Sessions, file: StoredFile, quota: Quota) -> None:
    """Reserve room for a file whose content is about to be stored. Raises Forbidden beyond the quota."""
    async with sessions.begin() as session:
        await take_lock(session, "files")
        used = select(func.count(), func.coalesce(func.sum(StoredFile.size_bytes), 0))
        num_files, num_bytes = (await session.execute(used.where(StoredFile.tenant_id == file.tenant_id))).one()
        if num_files >= quota.num_files:
            raise Forbidden(
                f"{num_files} files are kept for you, and {quota.num_files} may be; delete one", code="file_quota"
            )
        if num_bytes + file.size_bytes > quota.num_bytes:
            raise Forbidden(
                f"this file and yours that are here would be {num_bytes + file.size_bytes} bytes, and "
                f"{quota.num_bytes} may be; delete one",
                code="file_quota",
            )
        session.add(file)


async def note_ready(sessions: Sessions, file_id: UUID) -> None:
    async with sessions.begin() as session:
        await session.execute(update(StoredFile).where(StoredFile.id == file_id).values(is_ready=True))


async def hide_file(sessions: Sessions, tenant_id: UUID, file_id: UUID, *, now: datetime) -> StoredFile:
    """Hide the file, so that its content may be removed. Raises NotFound, and Conflict while a batch reads the file."""
    async with sessions.begin() as session:
        await take_lock(session, "files")
        found = await get_file(session, tenant_id, file_id, now=now)
        if await session.scalar(select(Batch.id).where(Batch.input_file_id == file_id, Batch.status.in_(LIVE))):
            raise Conflict("a batch under way reads this file; cancel it, or wait for its end")
        found.is_ready = False
    return found


async def forget_file(sessions: Sessions, file_id: UUID) -> None:
    """Delete the file's row, once its content is gone."""
    async with sessions.begin() as session:
        found = await session.get(StoredFile, file_id)
        if found is not None:
            await session.delete(found)


async def files_to_remove(
    sessions: Sessions, *, now: datetime, abandoned_before: datetime, limit: int
) -> list[StoredFile]:
    """Expired files, and files created before `abandoned_before` that are not ready; none that a batch still reads."""
    is_read = StoredFile.id.in_(select(Batch.input_file_id).where(Batch.status.in_(LIVE)))
    is_abandoned = ~StoredFile.is_ready & (StoredFile.created_at < abandoned_before)
    over = or_(StoredFile.expires_at < now, is_abandoned) & ~is_read
    async with sessions() as session:
        return list(await session.scalars(select(StoredFile).where(over).limit(limit)))


def check_purpose(purpose: str | None) -> str:
    if purpose is None:
        raise InvalidRequest("purpose: say `batch`", param="purpose")
    if purpose != "batch":
        raise InvalidRequest(f"purpose: only `batch` is served here, not {purpose[:64]!r}", param="purpose")
    return purpose
