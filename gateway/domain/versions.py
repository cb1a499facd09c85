"""Prevents lost updates: of two edits of the same state, the second is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from gateway.database import Sessions
from gateway.http.errors import Conflict


class Stale(Conflict):
    code = "stale_version"

    def __init__(
        self, message: str = "it has been changed since you read it; read it again and repeat your edit"
    ) -> None:
        super().__init__(message, param="version")


class Versioned:
    """`version` grows by one with each change; SQLAlchemy overwrites a row only in the version that it read."""

    version: Mapped[int] = mapped_column(server_default="1")

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.version}


def check_version(row: Versioned | None, version: int | None) -> None:
    """version: the version that the edit is based on, 0 if there was no row; None accepts any version.

    Raises Stale.
    """
    if version is not None and version != (0 if row is None else row.version):
        raise Stale


@asynccontextmanager
async def edit_of_maybe_none(sessions: Sessions) -> AsyncIterator[AsyncSession]:
    """A transaction that may insert a missing row. Raises Stale if another transaction has just inserted it."""
    try:
        async with sessions.begin() as session:
            yield session
    except IntegrityError:
        raise Stale from None
