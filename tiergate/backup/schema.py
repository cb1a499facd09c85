"""The relational database as a whole: one moment of it, whether it is empty, and the schema of a revision."""

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
"""In the audit log, written in the restore's transaction: how a repeated restore knows that this one is done."""
_VERSION = "alembic_version"
_SEEDED = {"tiers", "locks", "leases", "audit_head"}
"""Tables that revisions put rows into."""


def begin_snapshot(connection: Connection) -> None:
    """All that is read from now on is of one moment; writers are not held up."""
    if connection.dialect.name == "sqlite":
        # Python's driver begins a transaction only at the first write.
        connection.exec_driver_sql("BEGIN")
    else:
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def begin_exclusive(connection: Connection) -> None:
    """Whatever follows is there at the commit, or not at all. Raises Failure while others use the database."""
    if connection.dialect.name == "sqlite":
        # Tables are dropped and filled in any order.
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
    """The revision, which is that of this version. Raises Failure."""
    found, head = _revision(connection), _script().get_current_head()
    if found != head or head is None:
        advice = (
            "run `tiergate migrate` first" if found is None or _is_known(found) else "run the version that migrated it"
        )
        raise Failure(f"the database is at revision {found}, this version needs {head}; {advice}")
    return head


def check_peppers(connection: Connection, peppers: Peppers) -> None:
    """Raises Failure: a backup that tells another pepper than the keys were made with could not be restored."""
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
    """Raises Failure for a revision that this version of tiergate has not."""
    if not _is_known(revision):
        raise Failure(
            f"the backup is from a newer version, {version} (revision {revision}); restore it with that version or a"
            " newer one"
        )


def is_restored(connection: Connection, backup_id: str) -> bool:
    """This very backup was put into this database."""
    if _revision(connection) is None:
        return False
    query = select(AuditEntry.position).where(AuditEntry.action == RESTORED, AuditEntry.object_id == backup_id)
    return connection.scalar(query.limit(1)) is not None


def check_empty(connection: Connection) -> None:
    """Raises Failure for a database that holds anything but a schema of ours without rows."""
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
    """Of an empty database: the tables of that revision, without a row."""
    if _revision(connection) is not None:
        migrate_within(connection, "base")
    migrate_within(connection, revision)
    for name in _SEEDED & set(inspect(connection).get_table_names()):
        connection.execute(table(name).delete())


@contextmanager
def without_triggers(connection: Connection) -> Iterator[None]:
    """What is final comes back as it was: rows that the triggers would refuse to take now."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")).all()
        off = [f'DROP TRIGGER "{name}"' for name, _ in found]
        on = [sql for _, sql in found]
    else:
        names = inspect(connection).get_table_names()
        # Those of users alone: foreign keys are kept by triggers, too.
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
