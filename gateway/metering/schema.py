"""Applies the numbered files of migrations/clickhouse to ClickHouse.

Every file is idempotent (`IF NOT EXISTS`), so two consumers that start at once may both run it; the record of applied
files only saves work at later starts.
"""

from collections.abc import Iterator
from importlib.resources import files

from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.client import Client

from gateway.metering.clickhouse import DEADLINE_S, connect, database_of

_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migrations (name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = ReplacingMergeTree ORDER BY name SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
"""


def connect_migrated(url: str, *, deadline_s: int = DEADLINE_S) -> Client:
    """A client of the URL's database, which is created and migrated first."""
    database = database_of(url)
    admin = connect(url)
    try:
        admin.command(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}")
    finally:
        admin.close()
    client = connect(url, database=database, deadline_s=deadline_s)
    apply_migrations(client)
    return client


def apply_migrations(client: Client) -> list[str]:
    """Run the migrations that are not recorded yet; returns their names."""
    client.command(_RECORD)
    recorded = {name for (name,) in client.query("SELECT DISTINCT name FROM schema_migrations").result_rows}
    pending = [(name, sql) for name, sql in _migrations() if name not in recorded]
    for name, sql in pending:
        for statement in sql.split(";\n"):
            if statement.strip():
                client.command(statement)
        client.insert("schema_migrations", [[name]], column_names=["name"])
    return [name for name, _ in pending]


def _migrations() -> Iterator[tuple[str, str]]:
    folder = files("migrations") / "clickhouse"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".sql"):
            yield path.name.removesuffix(".sql"), path.read_text()
