"""The topics are made as the settings say, or checked against them."""

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from gateway.metering.kafka.connection import connect_admin
from gateway.metering.kafka.topics import ensure_topics, topic_id
from gateway.settings import ConfigError, GatewaySettings
from tests.support.kafka import KafkaBroker
from tests.support.kafka_clients import admin_of, kafka_settings


def ensure(settings: GatewaySettings) -> None:
    admin = connect_admin(settings)
    try:
        ensure_topics(admin, settings)
    finally:
        admin.close()


def test_topics_are_made_as_configured_and_the_second_start_finds_them_good(
    broker: KafkaBroker, settings: GatewaySettings
) -> None:
    ensure(settings)
    with admin_of(broker) as admin:
        first = topic_id(admin, settings.kafka_topic)
        usage, dead = admin.describe_topics([settings.kafka_topic, settings.kafka_dead_letter_topic])
        configs = admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in (usage["name"], dead["name"])],
            config_filter="all",
        )["topic"]
        assert {len(usage["partitions"]), len(dead["partitions"])} == {4, 1}
        assert configs[usage["name"]]["retention.ms"]["value"] == str(168 * 3_600_000)
        assert configs[dead["name"]]["retention.ms"]["value"] == "-1"
        ensure(settings)
        assert topic_id(admin, settings.kafka_topic) == first


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kafka_partitions": 9}, "TIERGATE_KAFKA_PARTITIONS"),
        ({"kafka_replication": 2, "kafka_min_insync_replicas": 1}, "TIERGATE_KAFKA_REPLICATION"),
        ({"kafka_retention_hours": 400}, "TIERGATE_KAFKA_RETENTION_HOURS"),
    ],
)
def test_a_topic_that_promises_less_stops_the_start_with_one_line(
    broker: KafkaBroker, settings: GatewaySettings, changes: dict[str, int], names: str
) -> None:
    ensure(settings)
    with pytest.raises(ConfigError, match=names) as caught:
        ensure(kafka_settings(broker, topic=settings.kafka_topic, **changes))
    assert "\n" not in str(caught.value)


def test_too_few_replicas_in_sync_stop_the_start(broker: KafkaBroker) -> None:
    topic = "few-in-sync"
    with admin_of(broker) as admin:
        admin.create_topics({topic: {"num_partitions": 4, "replication_factor": 1, "configs": {}}})
        wanted = kafka_settings(broker, topic=topic)
        object.__setattr__(wanted, "kafka_min_insync_replicas", 2)
        with pytest.raises(ConfigError, match="TIERGATE_KAFKA_MIN_INSYNC_REPLICAS"):
            ensure(wanted)
