from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.metering.store import UsageStore
from tests.support.clickhouse import ClickHouseProcess, GivenClickHouse, any_clickhouse, own_database


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess | GivenClickHouse]:
    """One engine for all tests that leave it alive; each uses a database of its own."""
    with any_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def clickhouse_url(clickhouse: ClickHouseProcess | GivenClickHouse) -> Iterator[str]:
    with own_database(clickhouse) as url:
        yield url


@pytest.fixture
def store(clickhouse_url: str) -> Iterator[UsageStore]:
    with closing(UsageStore(clickhouse_url)) as opened:
        yield opened
