"""Runs the revisions from an installed package: without an alembic.ini, the URL is an argument."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(database_url: str, revision: str = "head") -> list[str]:
    """Upgrade the database to `revision`, and return the revisions that were applied.

    It starts an event loop, so it must not be called from one.
    """
    config = alembic_config(database_url)
    applied: list[str] = []
    config.attributes["applied"] = applied
    command.upgrade(config, revision)
    return applied


def migrate_within(connection: Connection, revision: str = "head") -> None:
    """Migrate within the connection's transaction, which on SQLite must hold the write lock and not check foreign keys.

    revision: `base` removes all tables.
    """
    config = alembic_config("")
    config.attributes["connection"] = connection
    (command.downgrade if revision == "base" else command.upgrade)(config, revision)


def alembic_config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["database_url"] = database_url
    return config
