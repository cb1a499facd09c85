"""Dead letters: events that cannot become rows, in a separate topic, each with its reason and origin. None is deleted.

After a correction (a new release, a repaired table) they can be replayed and are processed like any other event; one
that is still wrong comes back with a new reason.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from gateway.kafka_settings import KafkaSettings
from gateway.metering.kafka.connection import client_options, kafka_calls
from gateway.metering.kafka.publisher import Publisher, Record

REASON_HEADER = "reason"
ORIGIN_HEADER = "origin"
_BATCH = 1000
_POLL_MS = 500


@dataclass(frozen=True)
class DeadLetter:
    reason: str
    origin: str
    """Topic, partition and offset of the event."""
    record: Any


def dead_letter(record: Any, reason: str) -> Record:
    """The unchanged record with its reason and origin as headers."""
    kept = [(name, value) for name, value in record.headers if name not in (REASON_HEADER, ORIGIN_HEADER)]
    origin = f"{record.topic}/{record.partition}/{record.offset}"
    return Record(
        record.key, record.value or b"", [*kept, (REASON_HEADER, reason.encode()), (ORIGIN_HEADER, origin.encode())]
    )


def list_dead_letters(settings: KafkaSettings) -> list[DeadLetter]:
    """The dead letters that were not replayed yet, oldest first. Raises KafkaUnavailable or ConfigError."""
    with kafka_calls(), closing(_consumer(settings)) as consumer:
        return [_as_letter(record) for batch in _batches(settings, consumer) for record in batch]


def replay_dead_letters(settings: KafkaSettings, stop: threading.Event) -> int:
    """Send the current dead letters to the usage topic again; returns their number.

    Raises KafkaUnavailable or ConfigError."""
    num_sent = 0
    with closing(Publisher(settings, stop)) as publisher, kafka_calls(), closing(_consumer(settings)) as consumer:
        for batch in _batches(settings, consumer):
            publisher.publish(settings.kafka_topic, [_as_event(record) for record in batch])
            ends = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in batch}
            consumer.commit({part: OffsetAndMetadata(end, "", -1) for part, end in ends.items()})
            num_sent += len(batch)
    return num_sent


def _batches(settings: KafkaSettings, consumer: KafkaConsumer) -> Iterator[list[Any]]:
    """Records from the end of the last replay to the current end of the topic."""
    topic = settings.kafka_dead_letter_topic
    parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    if not parts:
        return
    consumer.assign(parts)
    ends = consumer.end_offsets(parts)
    while any(consumer.position(part) < ends[part] for part in parts):
        found = [record for batch in consumer.poll(_POLL_MS, max_records=_BATCH).values() for record in batch]
        before = [record for record in found if record.offset < ends[TopicPartition(topic, record.partition)]]
        if before:
            yield before


def _consumer(settings: KafkaSettings) -> KafkaConsumer:
    return KafkaConsumer(
        **client_options(settings),
        group_id=f"{settings.kafka_group}-replay",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        metrics_enabled=False,
    )


def _as_letter(record: Any) -> DeadLetter:
    headers = {name: value.decode(errors="replace") for name, value in record.headers}
    return DeadLetter(headers.get(REASON_HEADER, ""), headers.get(ORIGIN_HEADER, ""), record)


def _as_event(record: Any) -> Record:
    kept = [(name, value) for name, value in record.headers if name not in (REASON_HEADER, ORIGIN_HEADER)]
    return Record(record.key, record.value, kept)
