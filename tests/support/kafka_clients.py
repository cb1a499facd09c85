"""Queries and changes that tests make at a Kafka broker, apart from our own clients."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.structs import TopicPartition

from gateway.metering.kafka.producer import COUNTS, KIND_HEADER
from gateway.settings import GatewaySettings
from tests.support.kafka import KafkaBroker
from tests.support.platform import wait_until

_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Kafka's record batch, version 2: base offset, length, leader epoch, magic, checksum, attributes, last offset delta,
two timestamps, producer id, producer epoch, base sequence, number of records."""


class StoredBatch(NamedTuple):
    producer_id: int
    producer_epoch: int
    base_sequence: int
    compression: int
    num_records: int


def kafka_settings(broker: KafkaBroker, *, topic: str, **fields: Any) -> GatewaySettings:
    given = {
        "key_pepper": "p" * 16,
        "kafka_bootstrap_servers": broker.server,
        "kafka_topic": topic,
        "kafka_dead_letter_topic": f"{topic}.dead",
        "kafka_group": f"{topic}-group",
        "kafka_partitions": 4,
        "kafka_replication": 1,
    }
    return GatewaySettings(**given | fields)


def stored_batches(broker: KafkaBroker, topic: str) -> list[StoredBatch]:
    """The batches in the broker's log, which are as their producer sent them."""
    return [batch for segment in broker.segments(topic) for batch in _batches(segment)]


def read_all(broker: KafkaBroker, topic: str) -> list[Any]:
    """Every record of the topic, once."""
    consumer = KafkaConsumer(bootstrap_servers=broker.server, enable_auto_commit=False, metrics_enabled=False)
    try:
        parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        if not parts:
            return []
        consumer.assign(parts)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(parts)
        records: list[Any] = []
        while any(consumer.position(part) < ends[part] for part in parts):
            for found in consumer.poll(1000).values():
                records += found
        return records
    finally:
        consumer.close()


def read_events(broker: KafkaBroker, topic: str) -> list[Any]:
    """Like `read_all`, without the counts that gateways send beside their events."""
    return [record for record in read_all(broker, topic) if (KIND_HEADER, COUNTS) not in record.headers]


def topic_size(server: str, topic: str) -> int:
    """The number of records ever written to the topic."""
    consumer = KafkaConsumer(bootstrap_servers=server, enable_auto_commit=False, metrics_enabled=False)
    try:
        parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return sum(consumer.end_offsets(parts).values()) if parts else 0
    finally:
        consumer.close()


@contextmanager
def admin_of(broker: KafkaBroker) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=broker.server)
    try:
        yield admin
    finally:
        admin.close()


@contextmanager
def writing_refused(broker: KafkaBroker, topic: str) -> Iterator[None]:
    """Meanwhile the broker's access rules let nobody write to the topic."""
    rules = [(ACLOperation.ALL, ACLPermissionType.ALLOW), (ACLOperation.WRITE, ACLPermissionType.DENY)]
    everybody, resource = ("User:*", "*"), ResourcePattern(ResourceType.TOPIC, topic)
    everything = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, ResourcePatternFilter(*_of(resource)))
    with admin_of(broker) as admin:
        admin.create_acls([ACL(*everybody, *rule, resource) for rule in rules])
        wait_until(lambda: len(admin.describe_acls(everything)[0]) == len(rules), deadline_s=30)
        yield
        admin.delete_acls([everything])
        wait_until(lambda: not admin.describe_acls(everything)[0], deadline_s=30)


def _of(resource: ResourcePattern) -> tuple[Any, Any, Any]:
    return resource.resource_type, resource.resource_name, resource.pattern_type


def _batches(segment: bytes) -> Iterator[StoredBatch]:
    at = 0
    while at + _BATCH_HEADER.size <= len(segment):
        _, length, _, magic, _, attributes, _, _, _, producer_id, epoch, sequence, count = _BATCH_HEADER.unpack_from(
            segment, at
        )
        if length <= 0:
            return
        assert magic == 2
        yield StoredBatch(producer_id, epoch, sequence, attributes & 7, count)
        at += 12 + length
