"""Plans the migration of a database: what it would do, without changing anything."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from alembic.script import Script, ScriptDirectory
from sqlalchemy import func, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.inspection import inspect

from gateway.database import check_exists, make_engine
from migrations.effects import Effects
from migrations.run import alembic_config


class UnknownRevision(Exception):
    """The database was migrated by a newer version."""


@dataclass(frozen=True)
class Step:
    revision: str
    what: str
    effects: Effects
    rows: Mapping[str, int]
    """The number of rows of each table that the revision rewrites."""

    @property
    def is_additive(self) -> bool:
        """Whether old gateways notice nothing but tables that are locked for a moment."""
        return self.effects.old_gateways == "serve" and not self.effects.rewrites

    @property
    def seconds(self) -> int:
        """The estimated duration of its rewrites; 0 means less than a second."""
        return sum(self.rows.values()) // self.effects.rows_per_s


@dataclass(frozen=True)
class Plan:
    at: str | None
    """The current revision; None if the database is empty or does not exist."""
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> int:
        return sum(step.seconds for step in self.steps)

    @property
    def locks(self) -> tuple[str, ...]:
        """The locked tables of all steps: all revisions are one transaction, so each lock lasts until the end."""
        return tuple(sorted({name for step in self.steps for name in step.effects.locks}))


def plan(database_url: str) -> Plan:
    """The revisions that would run. Raises UnknownRevision.

    It starts an event loop, so it must not be called from one.
    """
    script = ScriptDirectory.from_config(alembic_config(database_url))
    at, tables = asyncio.run(_look(database_url, script))
    if at is not None and at not in {each.revision for each in script.walk_revisions()}:
        raise UnknownRevision(f"the database is at revision {at}, which this version lacks: a newer one migrated it")
    to_run = reversed(list(script.iterate_revisions("head", at or "base")))
    return Plan(at, tuple(_step(each, tables) for each in to_run))


def effects_of(script: Script) -> Effects:
    effects = getattr(script.module, "effects", None)
    assert isinstance(effects, Effects), f"revision {script.revision} declares no `effects = Effects(...)`"
    return effects


def _step(script: Script, tables: Mapping[str, int]) -> Step:
    effects = effects_of(script)
    rows = {name: tables.get(name, 0) for name in effects.rewrites}
    return Step(script.revision, script.doc, effects, rows)


async def _look(database_url: str, script: ScriptDirectory) -> tuple[str | None, dict[str, int]]:
    """The current revision, and the number of rows of every table that some revision rewrites."""
    try:
        check_exists(database_url)
    except FileNotFoundError:
        return None, {}
    wanted = {name for each in script.walk_revisions() for name in effects_of(each).rewrites}
    engine = make_engine(database_url)
    try:
        async with engine.connect() as connection:
            there = set(await connection.run_sync(lambda plain: inspect(plain).get_table_names()))
            at = await _revision(connection) if "alembic_version" in there else None
            return at, {name: await _count(connection, name) for name in sorted(wanted & there)}
    finally:
        await engine.dispose()


async def _revision(connection: AsyncConnection) -> str | None:
    found: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


async def _count(connection: AsyncConnection, name: str) -> int:
    return await connection.scalar(select(func.count()).select_from(table(name))) or 0
