from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clickhouse import ClickHouseProcess, GivenClickHouse, any_clickhouse, own_database
from tests.support.s3_fixtures import s3, s3_server
from tests.support.valkey import ValkeyProcess

__all__ = ["s3", "s3_server"]


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("valkey")))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess | GivenClickHouse]:
    with any_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def clickhouse_url(clickhouse: ClickHouseProcess | GivenClickHouse) -> Iterator[str]:
    with own_database(clickhouse) as url:
        yield url


@pytest.fixture
def another_clickhouse_url(clickhouse: ClickHouseProcess | GivenClickHouse) -> Iterator[str]:
    with own_database(clickhouse) as url:
        yield url
