"""Run the revisions from an installed package: no alembic.ini, the URL is an argument."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(database_url: str, revision: str = "head") -> list[str]:
    """Bring the database to `revision`; the revisions that this took. Starts an event loop of its own: call it from
    plain threads only."""
    config = alembic_config(database_url)
    applied: list[str] = []
    config.attributes["applied"] = applied
    command.upgrade(config, revision)
    return applied


def migrate_within(connection: Connection, revision: str = "head") -> None:
    """In the transaction that is under way, which on SQLite holds the write lock and leaves foreign keys unchecked.

    revision: `base` takes all tables away again.
    """
    config = alembic_config("")
    config.attributes["connection"] = connection
    (command.downgrade if revision == "base" else command.upgrade)(config, revision)


def alembic_config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["database_url"] = database_url
    return config
