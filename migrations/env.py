import asyncio

from alembic import context
from sqlalchemy import Connection, text

from gateway.database import make_engine
from gateway.domain.tables import Base

# Without a lock, two processes that migrate at the same time would both see the old revision.
_MIGRATION_LOCK = 0x74696572


def _run(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        _begin_sqlite(connection)
    _migrate(connection)
    connection.commit()


def _migrate(connection: Connection) -> None:
    applied = context.config.attributes.get("applied", [])
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        on_version_apply=lambda *, step, **_: applied.append(step.up_revision_id),
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        context.run_migrations()


def _begin_sqlite(connection: Connection) -> None:
    """Begin the one transaction of all revisions, which Python's driver would begin only at the first INSERT.

    Foreign keys are off: a changed table is copied and dropped, which must not count as deleting rows that other tables
    refer to.
    """
    connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def _run_async() -> None:
    engine = make_engine(context.config.attributes["database_url"])
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


# A connection whose transaction the caller began and will end.
given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(_run_async())
else:
    _migrate(given)
