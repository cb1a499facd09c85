"""What revisions declare of themselves is what PostgreSQL sees them do."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.inspection import inspect

from gateway.database import make_engine
from migrations.plan import UnknownRevision, effects_of, plan
from migrations.run import alembic_config, migrate
from tests.support.cli import tiergate
from tests.support.postgres import find_binaries, running_postgres

WATCH = (
    "CREATE TABLE altered (name text)",
    """CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO altered SELECT objid::regclass::text FROM pg_event_trigger_ddl_commands()
        WHERE command_tag = 'ALTER TABLE' AND classid = 'pg_class'::regclass;
    END $$""",
    "CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION note()",
)


@pytest.fixture
def postgres_url() -> Iterator[str]:
    binaries = find_binaries()
    if binaries is None and "CI" not in os.environ:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    assert binaries is not None, "PostgreSQL is not installed"
    with running_postgres(binaries) as url:
        yield url


async def look(url: str, *statements: str) -> tuple[set[str], set[str]]:
    """The tables there are, and those that were altered."""
    engine = make_engine(url)
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))
        there = set(await connection.run_sync(lambda plain: inspect(plain).get_table_names()))
        altered = set((await connection.execute(text("SELECT name FROM altered"))).scalars())
        await connection.execute(text("TRUNCATE altered"))
    await engine.dispose()
    return there, altered


def test_each_revision_names_the_tables_that_it_locks(postgres_url: str) -> None:
    script = ScriptDirectory.from_config(alembic_config(postgres_url))
    there, _ = asyncio.run(look(postgres_url, *WATCH))
    found, declared = {}, {}
    for each in reversed(list(script.walk_revisions())):
        migrate(postgres_url, each.revision)
        now, altered = asyncio.run(look(postgres_url))
        found[each.revision] = tuple(sorted(altered & there))
        declared[each.revision] = effects_of(each).locks
        there = now - {"alembic_version", "altered"}
    assert declared == found


def test_a_plan_tells_what_would_run_and_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    new = plan(url)
    assert new.at is None and [step.revision for step in new.steps][:2] == ["0001", "0002"]
    assert not (tmp_path / "db.sqlite").exists()
    migrate(url, "0018")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        rows = [(f"{number:032x}", "2026-01-01", "key.create", "k", "{}") for number in range(12_000)]
        file.executemany("INSERT INTO audit_log (id, at, action, object_id, detail) VALUES (?, ?, ?, ?, ?)", rows)
        file.commit()
        before = (tmp_path / "db.sqlite").read_bytes()
        found = plan(url)
        assert (tmp_path / "db.sqlite").read_bytes() == before
    first = found.steps[0]
    assert (found.at, first.revision, dict(first.rows), first.seconds) == ("0018", "0019", {"audit_log": 12_000}, 2)
    assert not first.is_additive and "audit_log" in found.locks and found.seconds == 2
    assert all(step.is_additive for step in found.steps[1:])
    migrate(url)
    assert plan(url).steps == ()
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.execute("UPDATE alembic_version SET version_num = '9999'")
        file.commit()
    with pytest.raises(UnknownRevision, match="9999"):
        plan(url)


def test_the_command_tells_the_plan_to_people_and_scripts(tmp_path: Path) -> None:
    environment = {"TIERGATE_KEY_PEPPER": "p" * 16, "TIERGATE_DATA_DIR": str(tmp_path)}
    migrate(f"sqlite+aiosqlite:///{tmp_path / 'tiergate.db'}", "0018")
    told = json.loads(tiergate("migrate", "--plan", "--json", env=environment).stdout)
    assert told["at"] == "0018" and not told["is_safe"]
    assert told["revisions"][0]["old_gateways"] == "serve without changes"
    shown = tiergate("migrate", "--plan", env=environment)
    assert shown.returncode == 0 and "0019" in shown.stdout and "changes through them fail" in shown.stdout
    assert tiergate("migrate", env=environment).returncode == 0
    assert "nothing to do" in tiergate("migrate", "--plan", env=environment).stdout
