from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.gateway.metering.conftest import clickhouse, clickhouse_url
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

__all__ = ["clickhouse", "clickhouse_url"]


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """Not shared with other tests, since all of it is searched."""
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("erasure-valkey")))
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def redis(own_valkey: ValkeyProcess) -> AsyncIterator["Redis"]:
    client = Redis.from_url(own_valkey.url)
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("erasure-model") / "tiny", seed=7)


@pytest.fixture
def worker(tmp_path: Path, own_valkey: ValkeyProcess, checkpoint: Path) -> Iterator[WorkerProcess]:
    """A worker whose log and fetched adapters are in the scene's folder."""
    folder = tmp_path / "scene"
    folder.mkdir()
    options = ("--artifacts-url", str(folder / "store"), "--artifacts-dir", str(folder / "cache"))
    started = WorkerProcess(folder, pool="small", redis_url=own_valkey.url, seed=7, model=checkpoint, options=options)
    started.wait_until_ready()
    yield started
    started.stop()
