"""Faults that are planted in a healthy installation are each named, and nothing else is."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from alembic import command
from redis.asyncio import Redis

from gateway.clock import utc_now
from gateway.database import open_sessions
from gateway.domain.keys.service import make_admin_key
from gateway.metering.clickhouse import connect
from gateway.metering.schema import connect_migrated
from gateway.peppers import Peppers
from gateway.settings import GatewaySettings, MemberConfig, PoolConfig
from migrations.run import alembic_config
from tests.support.cli import tiergate
from tests.support.clickhouse import ClickHouseProcess, running_clickhouse
from tests.support.gateways import copy_database
from tests.support.hostile_oidc import hostile_provider
from tests.support.members import serving_app
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess
from tiergate.doctor.examination import examine
from tiergate.doctor.usage_stores import judge_version

PEPPER = "a-pepper-that-is-long-enough"
WORKER_KEY = "the-worker-key"
OF_THIS_MACHINE = {"open-files", "disk-nearly-full"}
"""What tests cannot help."""


@dataclass
class Scene:
    folder: Path
    valkey: ValkeyProcess
    clickhouse_url: str
    stack: AsyncExitStack
    settings: dict[str, Any] = field(default_factory=dict)
    now: datetime = field(default_factory=utc_now)

    @property
    def config(self) -> Path:
        return self.folder / "tiergate.toml"

    def database(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "data" / "tiergate.db")) as file:
            for statement in statements:
                file.execute(statement)
            file.commit()

    async def redis(self, *options: str) -> None:
        async with Redis.from_url(self.valkey.url) as redis:
            await redis.config_set(*options)

    async def member(self, *, model: str = "m", status: int = 200, body: Any = None) -> None:
        """In the pool `p`, with the id `m`."""

        async def models(_request: web.Request) -> web.Response:
            return web.json_response(body or {"data": [{"id": model}]}, status=status)

        app = web.Application()
        app.router.add_get("/v1/models", models)
        self.pool(await self.stack.enter_async_context(serving_app(app)))

    def pool(self, url: str) -> None:
        member = MemberConfig(url=url, engine="openai")
        self.settings["pools"] = {"p": PoolConfig(model="m", context_window=5, members=(member,))}

    async def provider(
        self, *, is_late: bool = False, public_url: str = "https://llm.example.com", **told: Any
    ) -> None:
        """Of people who log in; told: in place of what its discovery document would say."""
        provider = await self.stack.enter_async_context(hostile_provider())
        provider.discovery = told
        if is_late:
            provider.headers = {"Date": "Mon, 01 Jan 2024 00:00:00 GMT"}
        self.settings |= _oidc(provider.issuer, public_url)

    async def named(self) -> set[str]:
        given: dict[str, Any] = {
            "data_dir": self.folder / "data",
            "redis_url": self.valkey.url,
            "clickhouse_url": self.clickhouse_url,
            "key_pepper": PEPPER,
            "worker_key": WORKER_KEY,
            "port": 0,
        }
        settings = GatewaySettings(**(given | self.settings))
        found = await examine(settings, self.config, now=self.now)
        assert all(each.what and each.todo for each in found)
        return {each.name for each in found} - OF_THIS_MACHINE


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    with running_clickhouse(Path(tmp_path_factory.mktemp("clickhouse"))) as process:
        connect_migrated(process.url).close()
        yield process


@pytest.fixture
async def scene(tmp_path: Path, clickhouse: ClickHouseProcess) -> AsyncIterator[Scene]:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    await asyncio.to_thread(copy_database, data_dir / "tiergate.db")
    async with open_sessions(f"sqlite:///{data_dir / 'tiergate.db'}", peppers=Peppers(PEPPER)) as sessions:
        await make_admin_key(sessions, name="k", pepper=PEPPER, now=utc_now())
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    async with AsyncExitStack() as stack:
        stack.callback(valkey.stop)
        made = Scene(tmp_path, valkey, clickhouse.url, stack)
        await made.redis("appendonly", "yes")
        await made.member()
        yield made


async def test_a_healthy_installation_has_nothing_to_tell(scene: Scene) -> None:
    assert await scene.named() == set()


async def test_an_identity_provider_that_works_is_nothing_to_tell(scene: Scene) -> None:
    await scene.provider()
    assert await scene.named() == set()


def _oidc(issuer: str, public_url: str = "https://llm.example.com") -> dict[str, Any]:
    return {
        "oidc_issuer": issuer,
        "oidc_client_id": "tiergate",
        "oidc_roles": {"operators": "platform-admin"},
        "oidc_private_networks": "127.0.0.0/8",
        "public_url": public_url,
    }


Plant = Callable[[Scene], Awaitable[None] | None]


def _write(path: Path, text: str = "") -> None:
    path.write_text(text)
    path.chmod(0o644)


def _elsewhere(scene: Scene) -> None:
    path = scene.folder / "elsewhere.db"
    path.write_bytes((scene.folder / "data" / "tiergate.db").read_bytes())
    path.chmod(0o644)
    scene.settings["database_url"] = f"sqlite:///{path}"


async def _another_program(scene: Scene) -> None:
    url = await scene.stack.enter_async_context(serving_app(web.Application()))
    scene.settings["port"] = int(url.rpartition(":")[2])


async def _fill_redis(scene: Scene) -> None:
    async with Redis.from_url(scene.valkey.url) as redis:
        await redis.set("x", "x" * 2_000_000)
    await scene.redis("maxmemory", "1000000")


def _older(scene: Scene) -> None:
    command.downgrade(alembic_config(f"sqlite:///{scene.folder / 'data' / 'tiergate.db'}"), "0020")


def _another_database(scene: Scene) -> None:
    client = connect(scene.clickhouse_url)
    client.command("CREATE DATABASE IF NOT EXISTS other")
    client.close()
    scene.clickhouse_url += "/other"


def _behind(scene: Scene) -> None:
    client = connect(scene.clickhouse_url)
    client.command("CREATE DATABASE IF NOT EXISTS behind")
    client.command("CREATE OR REPLACE TABLE behind.schema_migrations (name String) ENGINE = Memory")
    client.close()
    scene.clickhouse_url += "/behind"


FAULTS: dict[str, Plant] = {
    "data-dir-missing": lambda scene: scene.settings.update(data_dir=scene.folder / "none"),
    "data-dir-mode": lambda scene: (scene.folder / "data").chmod(0o755),
    "secret-file-mode": lambda scene: _write(scene.config),
    "secret-file-mode of keys.json": lambda scene: _write(scene.folder / "data" / "keys.json", "{}"),
    "secret-file-mode of the database": _elsewhere,
    "adapter-root": lambda scene: scene.settings.update(adapter_roots=(str(scene.folder / "none"),)),
    "disk-full": lambda scene: scene.settings.update(outbox_min_free_bytes=2**60),
    "pepper-weak": lambda scene: scene.settings.update(key_pepper="abcabcabcabcabcabc"),
    "pepper-differs": lambda scene: scene.settings.update(key_pepper="another-pepper-than-that"),
    "pepper-removed": lambda scene: scene.database("UPDATE api_keys SET pepper_id = x'0011223344556677'"),
    "worker-key": lambda scene: scene.settings.update(worker_key=None),
    "worker-key-reused": lambda scene: scene.settings.update(worker_key=PEPPER),
    "port-taken": _another_program,
    "database-away": lambda scene: scene.settings.update(database_url="sqlite:////no/such/file"),
    "database-away on PostgreSQL": lambda scene: scene.settings.update(
        database_url=f"postgresql://x@127.0.0.1:{free_port()}/x"
    ),
    "migrations-behind": lambda scene: asyncio.to_thread(_older, scene),
    "database-newer": lambda scene: scene.database("UPDATE alembic_version SET version_num = '9999'"),
    "no-admin": lambda scene: scene.database("UPDATE api_keys SET revoked_at = '2026-01-01 00:00:00.000000'"),
    "sqlite-shared": lambda scene: scene.settings.update(processes=2),
    "redis-away": lambda scene: scene.valkey.stop(),
    "redis-password": lambda scene: scene.redis("requirepass", "secret"),
    "redis-eviction": lambda scene: scene.redis("maxmemory-policy", "allkeys-lru"),
    "redis-persistence": lambda scene: scene.redis("appendonly", "no"),
    "redis-full": _fill_redis,
    "clock": lambda scene: setattr(scene, "now", scene.now + timedelta(minutes=10)),
    "no-clickhouse": lambda scene: scene.settings.update(clickhouse_url=None),
    "clickhouse-away": lambda scene: scene.settings.update(clickhouse_url=f"http://127.0.0.1:{free_port()}"),
    "clickhouse-empty": lambda scene: asyncio.to_thread(_another_database, scene),
    "clickhouse-behind": lambda scene: asyncio.to_thread(_behind, scene),
    "member-away": lambda scene: scene.pool(f"http://127.0.0.1:{free_port()}"),
    "member-key": lambda scene: scene.member(status=401),
    "member-failing": lambda scene: scene.member(status=500),
    "member-model": lambda scene: scene.member(model="another"),
    "member-foreign": lambda scene: scene.member(body={"hello": "world"}),
    "oidc-provider": lambda scene: scene.provider(issuer="https://another.example"),
    "oidc-provider away": lambda scene: scene.settings.update(_oidc(f"http://127.0.0.1:{free_port()}")),
    "oidc-provider without keys": lambda scene: scene.provider(jwks_uri="http://127.0.0.1:1/"),
    "oidc-plain": lambda scene: scene.provider(public_url="http://llm.example.com"),
    "clock of the provider": lambda scene: scene.provider(is_late=True),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_named_and_nothing_else(scene: Scene, fault: str) -> None:
    planted = FAULTS[fault](scene)
    if planted is not None:
        await planted
    named = await scene.named()
    also = {"pepper-weak": {"pepper-differs"}, "data-dir-missing": {"database-away"}}
    assert named == {fault.split()[0]} | also.get(fault, set())


@pytest.mark.parametrize(("version", "is_old"), [("23.8.1", True), ("24.3.2.1", False), ("25.1", False), ("", True)])
def test_an_old_clickhouse_is_told(version: str, is_old: bool) -> None:
    assert [each.name for each in judge_version(version)] == ["clickhouse-version"] * is_old


def test_the_command_tells_what_to_do_and_ends_with_1(tmp_path: Path) -> None:
    environment = {"TIERGATE_KEY_PEPPER": PEPPER, "TIERGATE_DATA_DIR": str(tmp_path / "none"), "TIERGATE_PORT": "0"}
    environment["TIERGATE_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    ended = tiergate("doctor", "--json", env=environment)
    assert ended.returncode == 1
    assert {"data-dir-missing", "database-away", "redis-away"} <= {each["name"] for each in json.loads(ended.stdout)}
    assert "[redis-away]" in tiergate("doctor", env=environment).stdout
    bad = tiergate("doctor", "--json", env={"TIERGATE_KEY_PEPPER": "short"})
    assert [each["name"] for each in json.loads(bad.stdout)] == ["configuration"] and bad.returncode == 1
