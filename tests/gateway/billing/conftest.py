from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.metering.queries import UsageQueries
from gateway.metering.store import UsageStore
from tests.support.clickhouse import ClickHouseProcess, GivenClickHouse, any_clickhouse, own_database
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess | GivenClickHouse]:
    """One engine for all tests; each uses a database of its own."""
    with any_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def clickhouse_url(clickhouse: ClickHouseProcess | GivenClickHouse) -> Iterator[str]:
    with own_database(clickhouse) as url:
        yield url


@pytest.fixture
def store(clickhouse_url: str) -> Iterator[UsageStore]:
    with closing(UsageStore(clickhouse_url)) as opened:
        opened.prepare()
        yield opened


@pytest.fixture
async def queries(clickhouse_url: str, store: UsageStore) -> AsyncIterator[UsageQueries]:
    opened = UsageQueries(clickhouse_url)
    yield opened
    await opened.close()


@pytest.fixture
async def gateway(
    tmp_path: Path, valkey: ValkeyProcess, clickhouse_url: str, store: UsageStore
) -> AsyncIterator[Gateway]:
    """A gateway without workers; its usage is what a test puts into `store`."""
    async with running_gateway(make_settings(tmp_path, valkey.url, clickhouse_url=clickhouse_url)) as running:
        yield running
