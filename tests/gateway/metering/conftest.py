from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.metering.store import UsageStore
from tests.support.clickhouse import ClickHouseProcess, running_clickhouse


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    """One engine for all tests that leave it alive; each uses a database of its own."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def clickhouse_url(clickhouse: ClickHouseProcess, request: pytest.FixtureRequest) -> str:
    return f"{clickhouse.url}/test_{abs(hash(request.node.nodeid))}"


@pytest.fixture
def store(clickhouse_url: str) -> Iterator[UsageStore]:
    with closing(UsageStore(clickhouse_url)) as opened:
        yield opened
