"""A backup that is taken under load, put back into empty installations."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.database import make_engine
from gateway.domain.audit.verification import verify
from gateway.metering.consumer import Consumer
from gateway.metering.folders import list_folders
from gateway.metering.store import UsageStore
from gateway.peppers import Peppers
from migrations.run import migrate
from tests.support.backups import (
    PEPPER,
    Furnished,
    answers,
    client_of,
    environment,
    furnish,
    installation,
    loaded,
    refused,
    tiergate,
    usage_rows,
)
from tests.support.batches import TURN
from tests.support.postgres import find_binaries, running_postgres
from tests.support.scripted_members import ScriptedMember, serving_script
from tests.support.valkey import ValkeyProcess

BINARIES = find_binaries()
needs_postgres = pytest.mark.skipif(
    BINARIES is None and "CI" not in os.environ, reason="PostgreSQL is not installed (apt-get install postgresql)"
)


def ship(data_dir: Path, clickhouse_url: str) -> None:
    """As `tiergate consumer` does, until nothing waits."""
    with closing(UsageStore(clickhouse_url)) as store:
        store.prepare()
        Consumer(data_dir, store).ship()
    assert list_folders(data_dir) == []


def sqlite_in(data_dir: Path) -> str:
    return f"sqlite+aiosqlite:///{data_dir}/tiergate.db"


@asynccontextmanager
async def postgres() -> AsyncIterator[tuple[str, str]]:
    """The URLs of two empty databases."""
    assert BINARIES is not None, "PostgreSQL is not installed"
    with running_postgres(BINARIES) as url:
        await _create_database(url, "another")
        yield url, url.removesuffix("tiergate") + "another"


async def _create_database(url: str, name: str) -> None:
    engine = make_engine(url)
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql(f"CREATE DATABASE {name}")
    await engine.dispose()


async def take(target: Path, **variables: str) -> Path:
    done = await tiergate("backup", str(target), "--json", env=variables)
    assert (done.code, done.err) == (0, ""), done
    return Path(json.loads(done.out)["file"])


async def put_back(backup: Path, data_dir: Path, database_url: str) -> None:
    done = await tiergate("restore", str(backup), env=environment(data_dir, TIERGATE_DATABASE_URL=database_url))
    assert (done.code, done.err) == (0, ""), done


async def check_the_same(
    folder: Path,
    valkey: ValkeyProcess,
    clickhouse_url: str,
    member: ScriptedMember,
    scene: Furnished,
    expected: dict[str, Any],
    database_url: str,
) -> None:
    """All lists answer as before, the audit log holds and tells of the restore, and the tenant's key works."""
    async with installation(folder, valkey.url, clickhouse_url, member, database_url=database_url) as gateway:
        found = await answers(gateway, scene)
        *entries, last = found["audit"]
        assert last["action"] == "installation.restore"
        assert found | {"audit": entries} == expected
        async with client_of(gateway, scene.key) as client:
            reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        assert reply.choices[0].message.content == "four"
        await verify(gateway.services.sessions, peppers=Peppers(PEPPER))


async def test_a_backup_under_load_is_the_installation_again(
    tmp_path: Path, valkey: ValkeyProcess, clickhouse_url: str, another_clickhouse_url: str
) -> None:
    old, new, alone = (tmp_path / name for name in ("old", "new", "alone"))
    async with serving_script(lambda _: TURN) as member:
        async with installation(old, valkey.url, clickhouse_url, member) as gateway:
            scene = await furnish(gateway, clickhouse_url)
            expected = await answers(gateway, scene)
            async with loaded(scene, member) as load:
                before = set(load.answered)
                backup = await take(tmp_path, **environment(old / "gateway"))
                during = set(load.answered)
        assert len(during) > len(before)
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]

        # The old installation delivers everything, and the new one what waited at the backup.
        ship(old / "gateway", clickhouse_url)
        delivered = usage_rows(clickhouse_url)
        assert delivered.keys() >= set(load.answered)
        await put_back(backup, new / "gateway", "")
        ship(new / "gateway", clickhouse_url)
        assert usage_rows(clickhouse_url) == delivered
        await check_the_same(new, valkey, clickhouse_url, member, scene, expected, sqlite_in(new / "gateway"))

        # The old one has burnt down with its outboxes.
        await put_back(backup, alone / "gateway", "")
        ship(alone / "gateway", another_clickhouse_url)
        found = usage_rows(another_clickhouse_url)
    assert found.keys() >= before
    lost = {request for request, (status, _) in found.items() if status == "lost"}
    assert lost and lost.isdisjoint(before)
    assert found.items() - {(each, found[each]) for each in lost} <= delivered.items()


@needs_postgres
@pytest.mark.long
async def test_postgresql_takes_what_sqlite_had_and_the_other_way_round(
    tmp_path: Path, valkey: ValkeyProcess, clickhouse_url: str
) -> None:
    old, moved, back, again = (tmp_path / name for name in ("old", "moved", "back", "again"))
    async with serving_script(lambda _: TURN) as member:
        async with installation(old, valkey.url, clickhouse_url, member) as gateway:
            scene = await furnish(gateway, clickhouse_url)
            expected = await answers(gateway, scene)
        first = await take(tmp_path / "first", **environment(old / "gateway"))
        async with postgres() as (one, two):
            # One is new, and the other has its tables.
            await asyncio.to_thread(migrate, two)
            await put_back(first, moved / "gateway", one)
            async with installation(moved, valkey.url, clickhouse_url, member, database_url=one) as gateway:
                found = await answers(gateway, scene)
                assert found | {"audit": found["audit"][:-1]} == expected
                expected = found
                async with loaded(replace(scene, gateway=gateway), member) as load:
                    before = set(load.answered)
                    second = await take(
                        tmp_path / "second", **environment(moved / "gateway", TIERGATE_DATABASE_URL=one)
                    )
                    busy = environment(tmp_path / "busy", TIERGATE_DATABASE_URL=one)
                    assert "other connections" in await refused("restore", str(second), env=busy)
            assert len(load.answered) > len(before)
            await put_back(second, again / "gateway", two)
            await put_back(second, back / "gateway", "")
            for folder, url in ((again, two), (back, sqlite_in(back / "gateway"))):
                await check_the_same(folder, valkey, clickhouse_url, member, scene, expected, url)
