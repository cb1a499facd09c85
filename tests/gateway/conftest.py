from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, declare, eventually, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess
from tests.support.workers import ADAPTERS, WorkerProcess


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """Shared by tests that do not stop it; each uses tenants of its own."""
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("valkey")))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """Not shared with other tests: it is stopped, or what is in it would be in their way."""
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def fleet_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """The Valkey in which the workers register."""
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("fleet-valkey")))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory, fleet_valkey: ValkeyProcess) -> Iterator[list[WorkerProcess]]:
    """A worker of the small pool and one of the large pool."""
    folder = Path(tmp_path_factory.mktemp("workers"))
    started = [
        WorkerProcess(folder, pool=pool, redis_url=fleet_valkey.url, seed=seed)
        for pool, seed in (("small", 1), ("large", 5))
    ]
    for worker in started:
        worker.wait_until_ready()
    yield started
    for worker in started:
        worker.stop()


@pytest.fixture
async def gateway(tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]) -> AsyncIterator[Gateway]:
    """A gateway in front of both workers, with prices and an adapter."""
    async with running_gateway(make_settings(tmp_path, fleet_valkey.url, cache_embedding_model="large")) as running:
        for worker in workers:
            await declare(running, worker.model_id, pool=worker.pool)
        for name in ADAPTERS:
            await running.post("/adapters", {"name": name, "variants": {worker.model_id: name for worker in workers}})
        fleet = running.services.registry
        await eventually(lambda: all(fleet.fleet.pools[worker.pool].members for worker in workers))
        await eventually(lambda: all(running.services.bundles.bundle_of(worker.pool) for worker in workers))
        yield running


@pytest.fixture
async def key(gateway: Gateway) -> str:
    return await gateway.make_key()
