"""The relational database as a whole: a snapshot of it, whether it is empty, and the schema of a revision."""

from collections.abc import Iterator
from contextlib import contextmanager

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, exists, inspect, literal_column, select, table, text

from gateway.domain.audit.chain import is_sealed
from gateway.domain.audit.models import AuditEntry, AuditHead
from gateway.domain.tables import Base
from gateway.peppers import Peppers
from migrations.run import alembic_config, migrate_within
from tiergate.failure import Failure

RESTORED = "installation.restore"
"""The audit log's action for a restore, written in the restore's transaction. A repeated restore sees by it that the
first one was committed."""
_VERSION = "alembic_version"
_SEEDED = {"tiers", "locks", "leases", "audit_head"}
"""Tables into which revisions insert rows."""


def begin_snapshot(connection: Connection) -> None:
    """All reads from now on see one moment; writers are not blocked."""
    if connection.dialect.name == "sqlite":
        # Python's driver begins a transaction only at the first write.
        connection.exec_driver_sql("BEGIN")
    else:
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def begin_exclusive(connection: Connection) -> None:
    """Begin the transaction that contains the whole restore. Raises Failure while others use the database."""
    if connection.dialect.name == "sqlite":
        # Tables are dropped and filled in any order, so foreign keys cannot be checked meanwhile.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    others = connection.scalar(
        text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND usename IS NOT NULL"
        )
    )
    if others:
        raise Failure(
            f"{others} other connections to the database are open; stop the gateways (and psql) until the restore is"
            " through"
        )


def check_newest(connection: Connection) -> str:
    """The database's revision. Raises Failure if it is not the newest one of this version of tiergate."""
    found, head = _revision(connection), _script().get_current_head()
    if found != head or head is None:
        advice = (
            "run `tiergate migrate` first" if found is None or _is_known(found) else "run the version that migrated it"
        )
        raise Failure(f"the database is at revision {found}, this version needs {head}; {advice}")
    return head


def check_peppers(connection: Connection, peppers: Peppers) -> None:
    """Raises Failure if the pepper is not the database's: a backup naming a wrong pepper could not be restored."""
    head = connection.execute(select(AuditHead.num_rows, AuditHead.hash, AuditHead.seal)).one_or_none()
    if (
        head is not None
        and head.seal is not None
        and not is_sealed(head.seal, head.num_rows, head.hash, peppers=peppers)
    ):
        raise Failure(
            "TIERGATE_KEY_PEPPER is not the pepper of this database; set the gateway's. If it is, the audit log was"
            " altered: see `tiergate audit verify`, and change anything through the admin plane, which seals it again"
        )


def check_known(revision: str, *, version: str) -> None:
    """Raises Failure for a revision that this version of tiergate does not have."""
    if not _is_known(revision):
        raise Failure(
            f"the backup is from a newer version, {version} (revision {revision}); restore it with that version or a"
            " newer one"
        )


def is_restored(connection: Connection, backup_id: str) -> bool:
    """Whether this backup was restored into this database."""
    if _revision(connection) is None:
        return False
    query = select(AuditEntry.position).where(AuditEntry.action == RESTORED, AuditEntry.object_id == backup_id)
    return connection.scalar(query.limit(1)) is not None


def check_empty(connection: Connection) -> None:
    """Raises Failure unless the database holds at most our tables, with rows only in those that revisions fill."""
    tables = set(inspect(connection).get_table_names()) - {_VERSION}
    if not tables:
        return
    foreign = tables - Base.metadata.tables.keys()
    if foreign:
        raise Failure(f"the database holds other tables ({min(foreign)}, ...); give an empty one")
    for name in sorted(tables - _SEEDED):
        if connection.scalar(select(exists(select(literal_column("1")).select_from(table(name))))):
            raise Failure(f"the installation is not empty (there are rows in {name}); restore into a new database")


def make_schema(connection: Connection, revision: str) -> None:
    """Create the tables of that revision, without any row, in an empty database."""
    if _revision(connection) is not None:
        migrate_within(connection, "base")
    migrate_within(connection, revision)
    for name in _SEEDED & set(inspect(connection).get_table_names()):
        connection.execute(table(name).delete())


@contextmanager
def without_triggers(connection: Connection) -> Iterator[None]:
    """Final rows are restored as they were, which the triggers would refuse."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")).all()
        off = [f'DROP TRIGGER "{name}"' for name, _ in found]
        on = [sql for _, sql in found]
    else:
        names = inspect(connection).get_table_names()
        # Only user triggers, since PostgreSQL enforces foreign keys by internal triggers.
        off, on = ([f'ALTER TABLE "{name}" {verb} TRIGGER USER' for name in names] for verb in ("DISABLE", "ENABLE"))
    for statement in off:
        connection.exec_driver_sql(statement)
    yield
    for statement in on:
        connection.exec_driver_sql(statement)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_known(revision: str) -> bool:
    return revision in {each.revision for each in _script().walk_revisions()}


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config(""))
