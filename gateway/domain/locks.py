"""Locks for changes that must run one after another, because what a change checks must not change meanwhile."""

from typing import Literal

from sqlalchemy import BigInteger, CursorResult, String, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Lock(Base):
    __tablename__ = "locks"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    turn: Mapped[int] = mapped_column(BigInteger)


async def take_lock(session: AsyncSession, name: Literal["names", "admins", "billing", "files"]) -> None:
    """Hold the lock until the transaction ends. Take it before reading anything, and `admins` before `names`.

    Writing a row locks it on PostgreSQL; on SQLite it takes the database's one write lock.
    """
    result = await session.execute(update(Lock).where(Lock.name == name).values(turn=Lock.turn + 1))
    assert isinstance(result, CursorResult) and result.rowcount == 1, "revisions make the rows"
