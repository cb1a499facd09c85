"""Run the revisions from an installed package: no alembic.ini, the URL is an argument."""

from pathlib import Path

from alembic import command
from alembic.config import Config


def migrate(database_url: str, revision: str = "head") -> list[str]:
    """Bring the database to `revision`; the revisions that this took. Starts an event loop of its own: call it from
    plain threads only."""
    config = alembic_config(database_url)
    config.attributes["applied"] = applied = []
    command.upgrade(config, revision)
    return applied


def alembic_config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["database_url"] = database_url
    return config
