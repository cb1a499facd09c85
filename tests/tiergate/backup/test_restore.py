"""Restores that must not be, that come to nothing, or are killed: nothing half-done stays, and the next one works."""

import asyncio
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.artifacts.files import FileStore
from gateway.clock import utc_now
from gateway.database import open_sessions
from gateway.domain.files.models import StoredFile
from gateway.domain.keys.service import make_admin_key
from gateway.metering.folders import create_folder, list_folders, restoring_folder
from gateway.metering.journal import Journal, encode_event
from gateway.peppers import Peppers
from gateway.settings import GatewaySettings
from migrations.run import migrate
from tests.support.backups import PEPPER, environment, leftovers, refused, tiergate
from tests.support.events import make_event
from tests.support.gateways import DEADLINE_S, copy_database
from tests.support.object_stores import CREDENTIALS, S3Server
from tests.support.platform import clean_environment
from tests.tiergate.backup.test_archive import write_archive
from tiergate.backup.outboxes import make_live, place_outbox
from tiergate.backup.restoring import restore
from tiergate.backup.taking import take_backup
from tiergate.failure import Failure

NUM_EVENTS = 7
CONTENT = random.Random(0).randbytes(100_000)


async def settle(data_dir: Path, *, store_url: str = "", content: bytes = CONTENT) -> None:
    """A small installation: a key, a file, and usage that waits."""
    await asyncio.to_thread(data_dir.mkdir, mode=0o700)
    await asyncio.to_thread(copy_database, data_dir / "tiergate.db")
    async with open_sessions(f"sqlite:///{data_dir}/tiergate.db", peppers=Peppers(PEPPER)) as sessions:
        key, _ = await make_admin_key(sessions, name="admin", pepper=PEPPER, now=utc_now())
        store, file_id = FileStore(store_url or str(data_dir / "artifacts"), max_bytes=10**9), uuid4()
        async with store.staging(_chunks(content)) as staged:
            await store.publish(staged, file_id)
        async with sessions.begin() as session:
            file = StoredFile(id=file_id, tenant_id=key.tenant_id, purpose="batch", filename="f", created_at=utc_now())
            file.size_bytes, file.digest, file.is_ready = staged.size_bytes, staged.digest, True
            session.add(file)
    folder = create_folder(data_dir, "dead")
    with closing(Journal.open(folder.path)) as journal:
        journal.write(closed=[encode_event(make_event(f"r{number}")) for number in range(NUM_EVENTS)])
    folder.release()


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    await settle(tmp_path / "old")
    done = await tiergate("backup", str(tmp_path / "backup"), env=environment(tmp_path / "old"))
    assert done.code == 0, done
    return tmp_path / "backup"


async def check_restored(backup: Path, data_dir: Path, **variables: str) -> None:
    """By a restore that works."""
    done = await tiergate("restore", str(backup), env=environment(data_dir) | variables)
    assert (done.code, done.err) == (0, ""), done
    check_whole(data_dir)


def check_whole(data_dir: Path) -> None:
    (folder,) = list_folders(data_dir)
    with closing(Journal.open(folder, must_exist=True)) as journal:
        assert folder.name == "dead" and journal.count_closed() == NUM_EVENTS
    (stored,) = (path for path in (data_dir / "artifacts").rglob("*") if path.is_file())
    assert stored.read_bytes() == CONTENT
    with closing(sqlite3.connect(data_dir / "tiergate.db")) as database:
        assert database.execute("SELECT count(*) FROM api_keys").fetchone() == (1,)
        assert database.execute("SELECT count(*) FROM files").fetchone() == (1,)
        # The triggers that keep invoices are back.
        assert database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone() == (7,)
    assert not restoring_folder(data_dir).exists()


async def refused_start(data_dir: Path) -> str:
    done = await tiergate("gateway", "--port=0", env=environment(data_dir))
    assert done.code == 2 and done.err.count("\n") == 1, done
    return done.err


async def why_not_restored(backup: Path, data_dir: Path, *, pepper: str = PEPPER) -> str:
    settings = GatewaySettings(data_dir=data_dir, key_pepper=pepper)
    with pytest.raises(Failure) as refusal:
        await asyncio.to_thread(restore, settings, backup, now=utc_now(), on_progress=lambda _: None)
    return str(refusal.value)


async def why_not_taken(data_dir: Path, target: Path, *, pepper: str = PEPPER, database_url: str = "") -> str:
    settings = GatewaySettings(data_dir=data_dir, key_pepper=pepper, database_url=database_url)
    with pytest.raises(Failure) as refusal:
        await asyncio.to_thread(
            take_backup, settings, target, has_objects=True, now=utc_now(), on_progress=lambda _: None
        )
    return str(refusal.value)


async def test_what_must_not_be_restored_leaves_nothing_behind(tmp_path: Path, backup: Path) -> None:
    new = tmp_path / "new"
    env = environment(new)
    assert "TIERGATE_KEY_PEPPER is not" in await why_not_restored(backup, new, pepper="x" * 20)
    whole = await asyncio.to_thread(backup.read_bytes)
    (tmp_path / "cut").write_bytes(whole[:-100])
    (tmp_path / "flipped").write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    write_archive(tmp_path / "newer", revision="9999", version="7.0.0")
    assert "cut short" in await why_not_restored(tmp_path / "cut", new)
    assert "damaged" in await why_not_restored(tmp_path / "flipped", new)
    assert "newer version, 7.0.0" in await why_not_restored(tmp_path / "newer", new)
    assert leftovers(new) == []
    # There is room for less than the file, then for that but not for the database, which is written at its commit.
    assert "File too large" in await refused("restore", str(backup), env=env, limit_kib=64)
    assert leftovers(new) == []
    assert "TIERGATE_DATABASE_URL: " in await refused("restore", str(backup), env=env, limit_kib=150)
    assert leftovers(new) == []
    await check_restored(backup, new)


async def test_an_installation_that_is_not_empty_stays_as_it_is(tmp_path: Path, backup: Path) -> None:
    old = tmp_path / "old"
    assert "usage of another installation" in await why_not_restored(backup, old)
    shutil.rmtree(old / "outbox")
    before = (old / "tiergate.db").read_bytes()
    assert "not empty" in await refused("restore", str(backup), env=environment(old))
    assert (old / "tiergate.db").read_bytes() == before and not restoring_folder(old).exists()
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    env = environment(tmp_path / "new", TIERGATE_DATABASE_URL=f"sqlite:///{tmp_path}/foreign.db")
    assert "other tables (theirs" in await refused("restore", str(backup), env=env)


async def test_no_gateway_may_run_on_it(tmp_path: Path, backup: Path) -> None:
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    alive = create_folder(new, "alive")
    assert "a gateway or a consumer is running" in await refused("restore", str(backup), env=environment(new))
    alive.remove()
    # The pepper was replaced since.
    await check_restored(backup, new, TIERGATE_KEY_PEPPER="y" * 20, TIERGATE_OLD_KEY_PEPPERS=PEPPER)


async def test_backups_that_cannot_be_taken_say_why(tmp_path: Path, backup: Path) -> None:
    old, target = tmp_path / "old", str(tmp_path / "another")
    env = environment(old)
    names = set(os.listdir(tmp_path))
    assert "there already" in await why_not_taken(old, backup)
    assert "no folder" in await why_not_taken(old, tmp_path / "no" / "such")
    assert "no file" in await why_not_taken(tmp_path / "new", tmp_path / "another")
    assert "pepper of this database" in await why_not_taken(old, tmp_path / "another", pepper="x" * 20)
    assert "room on the disk" in await refused("backup", target, env=env, limit_kib=64)
    await asyncio.to_thread(migrate, f"sqlite:///{tmp_path}/behind.db", "0018")
    behind = f"sqlite:///{tmp_path}/behind.db"
    assert "tiergate migrate" in await why_not_taken(old, tmp_path / "another", database_url=behind)
    assert set(os.listdir(tmp_path)) - names == {"behind.db"}


async def test_content_that_the_store_has_lost_is_told(tmp_path: Path, backup: Path) -> None:
    shutil.rmtree(tmp_path / "old" / "artifacts")
    done = await tiergate("backup", str(tmp_path / "another"), env=environment(tmp_path / "old"))
    assert done.code == 0 and "missing in the object store already then: files/" in done.err
    done = await tiergate(
        "backup", str(tmp_path / "third"), "--no-objects", "--json", env=environment(tmp_path / "old")
    )
    assert (json.loads(done.out)["num_objects"], json.loads(done.out)["missing_objects"]) == (None, [])


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Its port, and whether somebody has asked it anything, which it never answers."""
    asked, is_over = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await is_over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked
        is_over.set()


async def test_one_that_is_killed_can_be_run_again(tmp_path: Path, backup: Path) -> None:
    new = tmp_path / "new"
    async with silent_server() as (port, asked):
        store = CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "TIERGATE_ARTIFACTS_URL": "s3://b"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tiergate", "restore", str(backup)),
            env=clean_environment() | environment(new) | store,
        )
        # All rows are in the transaction, and the outbox is in its place.
        await asyncio.wait_for(asked.wait(), DEADLINE_S)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    assert [path.name for path in restoring_folder(new).iterdir()] == ["dead"] and list_folders(new) == []
    assert "run `tiergate restore` again" in await refused_start(new)
    await check_restored(backup, new)


async def test_what_fails_after_the_commit_is_finished_by_the_same_restore(tmp_path: Path, backup: Path) -> None:
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    (new / "outbox").write_text("in the way")
    assert "outbox" in await refused("restore", str(backup), env=environment(new))
    assert "run `tiergate restore` again" in await refused_start(new)
    (new / "outbox").unlink()
    await settle(tmp_path / "other")
    done = await tiergate("backup", str(tmp_path / "another"), env=environment(tmp_path / "other"))
    assert "not empty" in await why_not_restored(tmp_path / "another", new), done
    await check_restored(backup, new)
    assert "restored here already" in await why_not_restored(backup, new)
    check_whole(new)


def test_outboxes_that_a_killed_restore_had_made_live_are_not_placed_twice(tmp_path: Path) -> None:
    for name in ("first", "second"):
        content = io.BytesIO(name.encode())
        restoring_folder(tmp_path).mkdir(exist_ok=True)
        assert place_outbox(tmp_path, f"outboxes/{name}.sqlite", content) == name
    taken = tmp_path / "outbox" / "first"
    taken.mkdir(parents=True)
    make_live(tmp_path)
    assert [folder.name for folder in list_folders(tmp_path)] == ["first", "second"]
    assert list(taken.iterdir()) == [] and not restoring_folder(tmp_path).exists()
    with pytest.raises(Failure):
        place_outbox(tmp_path, "outboxes/../../out.sqlite", io.BytesIO())


async def test_objects_go_from_one_s3_store_to_another(tmp_path: Path, s3: S3Server) -> None:
    content = random.Random(1).randbytes(9 << 20)
    one, two = s3.make_bucket(), s3.make_bucket()
    await settle(tmp_path / "old", store_url=f"s3://{one}/kept", content=content)
    env = environment(tmp_path / "old", TIERGATE_ARTIFACTS_URL=f"s3://{one}/kept")
    assert (await tiergate("backup", str(tmp_path / "backup"), env=env)).code == 0
    env = environment(tmp_path / "new", TIERGATE_ARTIFACTS_URL=f"s3://{two}/elsewhere")
    done = await tiergate("restore", str(tmp_path / "backup"), env=env)
    assert (done.code, done.err) == (0, ""), done
    (path,) = s3.keys(two)
    assert path == s3.keys(one)[0].replace("kept/", "elsewhere/")
    assert s3.client.get_object(Bucket=two, Key=path)["Body"].read() == content


async def test_one_of_an_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    tenant, stamp = str(uuid4()), "2026-01-02T03:04:05.678901Z"
    tiers = await asyncio.to_thread(_rows_of_old, tmp_path / "old.db", "tiers")
    write_archive(
        tmp_path / "backup",
        revision="0018",
        **{
            "tables/tiers/000000.jsonl": tiers,
            "tables/tenants/000000.jsonl": _lines(
                [["id", "uuid"], ["name", "text"], ["tier", "text"], ["created_at", "time"]],
                [tenant, "acme", "pro", stamp],
            ),
            "tables/audit_log/000000.jsonl": _lines(
                [["id", "uuid"], ["at", "time"], ["action", "text"], ["object_id", "text"], ["detail", "json"]],
                [str(uuid4()), stamp, "tenant.create", tenant, '{"name":  "acme"}'],
            ),
        },
    )
    done = await tiergate("restore", str(tmp_path / "backup"), env=environment(tmp_path / "new"))
    assert (done.code, done.err) == (0, ""), done
    async with open_sessions(f"sqlite:///{tmp_path}/new/tiergate.db") as sessions:
        async with sessions() as session:
            rows = (await session.execute(text("SELECT name, version FROM tenants"))).all()
            log = await session.scalar(text("SELECT detail FROM audit_log ORDER BY position LIMIT 1"))
        assert [tuple(row) for row in rows] == [("acme", 1)]
        assert log == '{"name":  "acme"}'


def _rows_of_old(path: Path, table: str) -> bytes:
    migrate(f"sqlite:///{path}", "0018")
    kinds = {"INTEGER": "integer", "BIGINT": "integer", "BOOLEAN": "integer", "DOUBLE": "number", "JSON": "json"}
    with closing(sqlite3.connect(path)) as database:
        columns = [(row[1], row[2]) for row in database.execute(f"PRAGMA table_info({table})")]
        names = [name for name, kind in columns if kind != "DATETIME"]
        head = [[name, kinds.get(kind.partition("(")[0], "text")] for name, kind in columns if name in names]
        rows = [list(row) for row in database.execute(f"SELECT {', '.join(names)} FROM {table}")]
    return _lines(head, *rows)


def _lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
