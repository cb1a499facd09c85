import asyncio

from alembic import context
from sqlalchemy import Connection, text

from gateway.database import make_engine
from gateway.domain.tables import Base

# Two processes that migrate at once would both see the old revision.
_MIGRATION_LOCK = 0x74696572


def _run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        context.run_migrations()


async def _run_async() -> None:
    engine = make_engine(context.config.attributes["database_url"])
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


asyncio.run(_run_async())
