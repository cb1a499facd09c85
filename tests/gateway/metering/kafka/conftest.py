from collections.abc import Iterator
from uuid import uuid4

import pytest

from gateway.settings import GatewaySettings
from tests.support.kafka import KafkaBroker, running_kafka
from tests.support.kafka_clients import kafka_settings


@pytest.fixture(scope="session")
def running_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def broker(running_broker: KafkaBroker) -> KafkaBroker:
    """One broker for all tests, running at the start of each; each test has topics of its own."""
    running_broker.restart_if_down()
    return running_broker


@pytest.fixture
def settings(broker: KafkaBroker) -> GatewaySettings:
    name = f"usage-{uuid4().hex[:10]}"
    return kafka_settings(broker, topic=name)
