"""The relational database: engine, sessions and the declarative base."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import DateTime, Dialect, MetaData, TypeDecorator, event
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

from gateway.peppers import Peppers

Sessions = async_sessionmaker[AsyncSession]
NO_PEPPER = Peppers("")
"""For processes that write no audit log entries."""

_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """Timezone-aware UTC datetimes on every database; plain SQLite would drop the time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        aware: datetime = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {datetime: UtcDateTime}  # noqa: RUF012  (SQLAlchemy reads it from the class)


def async_url(database_url: str) -> str:
    """`database_url` with our asynchronous driver filled in if the URL names no driver."""
    url = make_url(database_url)
    drivers = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}
    return url.set(drivername=drivers.get(url.drivername, url.drivername)).render_as_string(hide_password=False)


def check_exists(database_url: str) -> None:
    """Raises FileNotFoundError for a missing SQLite file, which connecting would create empty."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).is_file():
        raise FileNotFoundError(f"there is no file {url.database}")


def make_engine(database_url: str) -> AsyncEngine:
    url = async_url(database_url)
    if not url.startswith("sqlite"):
        return create_async_engine(url, pool_pre_ping=True, pool_timeout=5, hide_parameters=True)
    engine = create_async_engine(url, hide_parameters=True)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return engine


@asynccontextmanager
async def open_sessions(database_url: str, *, peppers: Peppers = NO_PEPPER) -> AsyncIterator[Sessions]:
    """peppers: seal the audit log entries that this process writes."""
    engine = make_engine(database_url)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False, info={"peppers": peppers})
    finally:
        await engine.dispose()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
