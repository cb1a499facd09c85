"""The two topics: created if missing, otherwise checked against the settings.

A topic with fewer replicas or a shorter retention than configured would lose acknowledged usage, and one with fewer
partitions would leave consumers idle. Such a topic is not changed behind the operator's back; it stops the start.
"""

from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError

from gateway.kafka_settings import KafkaSettings
from gateway.metering.kafka.connection import KafkaUnavailable, kafka_calls
from gateway.settings import ConfigError

MAX_RECORD_BYTES = 1_000_000
_UNKNOWN_TOPIC = 3
_FOR_EVER = -1
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Topic:
    name: str
    partitions: int
    replication: int
    min_insync_replicas: int
    retention_ms: int
    """-1: unlimited."""

    def options(self) -> dict[str, object]:
        configs = {
            "min.insync.replicas": str(self.min_insync_replicas),
            "retention.ms": str(self.retention_ms),
            "cleanup.policy": "delete",
        }
        return {"num_partitions": self.partitions, "replication_factor": self.replication, "configs": configs}


def wanted_topics(settings: KafkaSettings) -> tuple[Topic, Topic]:
    """The usage topic, and the dead-letter topic: dead letters are few and are kept until a person handles them."""
    replication, in_sync = settings.kafka_replication, settings.kafka_replicas_in_sync
    retention_ms = settings.kafka_retention_hours * _HOUR_MS
    return (
        Topic(settings.kafka_topic, settings.kafka_partitions, replication, in_sync, retention_ms),
        Topic(settings.kafka_dead_letter_topic, 1, replication, in_sync, _FOR_EVER),
    )


def ensure_topics(admin: KafkaAdminClient, settings: KafkaSettings) -> None:
    """Raises ConfigError naming the field, or KafkaUnavailable."""
    for topic in wanted_topics(settings):
        with kafka_calls():
            _ensure(admin, topic)


def topic_id(admin: KafkaAdminClient, name: str) -> str:
    """The topic's id, which changes if the topic is re-created. Raises KafkaUnavailable, also if there is no such
    topic."""
    with kafka_calls():
        [found] = admin.describe_topics([name])
    if not found["topic_id"]:
        raise KafkaUnavailable(f"there is no topic {name}")
    return str(found["topic_id"])


def _ensure(admin: KafkaAdminClient, topic: Topic) -> None:
    [found] = admin.describe_topics([topic.name])
    if found["error_code"] == _UNKNOWN_TOPIC:
        try:
            admin.create_topics({topic.name: topic.options()}, wait_for_metadata=True)
        except TopicAlreadyExistsError:
            # Another producer or consumer that is just starting has created it.
            admin.wait_for_topics([topic.name])
        return
    _check_as_wanted(admin, topic, found["partitions"])


def check_topics(admin: KafkaAdminClient, settings: KafkaSettings) -> None:
    """As `ensure_topics`, but creates nothing: missing topics are left to the producer."""
    for topic in wanted_topics(settings):
        with kafka_calls():
            [found] = admin.describe_topics([topic.name])
            if found["error_code"] != _UNKNOWN_TOPIC:
                _check_as_wanted(admin, topic, found["partitions"])


def _check_as_wanted(admin: KafkaAdminClient, topic: Topic, partitions: list[Any]) -> None:
    replication = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
    described = admin.describe_configs([resource], config_filter="all")["topic"][topic.name]
    in_sync, retention_ms = (int(described[name]["value"]) for name in ("min.insync.replicas", "retention.ms"))
    _check(topic.name, "PARTITIONS", "partitions", len(partitions), at_least=topic.partitions)
    _check(topic.name, "REPLICATION", "replicas", replication, at_least=topic.replication)
    _check(topic.name, "MIN_INSYNC_REPLICAS", "as min.insync.replicas", in_sync, at_least=topic.min_insync_replicas)
    if retention_ms != _FOR_EVER:
        wanted = topic.retention_ms
        if wanted == _FOR_EVER or retention_ms < wanted:
            needed = "for ever, -1" if wanted == _FOR_EVER else f"{wanted} ms"
            raise ConfigError(
                f"TIERGATE_KAFKA_RETENTION_HOURS: the topic {topic.name} keeps events for {retention_ms} ms,"
                f" which should be {needed} (retention.ms)"
            )


def _check(topic: str, field: str, what: str, there: int, *, at_least: int) -> None:
    if there < at_least:
        raise ConfigError(f"TIERGATE_KAFKA_{field}: the topic {topic} has {there} {what}, not {at_least}")
