"""From the outboxes into Kafka: what leaves, what stays, and what is on the wire."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.metering.kafka.connection import KafkaUnavailable
from gateway.metering.kafka.producer import OutboxProducer
from gateway.metering.outbox import Outbox
from gateway.settings import ConfigError, GatewaySettings
from tests.support.events import make_event
from tests.support.kafka import KafkaBroker, running_kafka
from tests.support.kafka_clients import admin_of, kafka_settings, read_events, stored_batches

ZSTD = 4


async def close_events(data_dir: Path, num_events: int, *, incarnation: str = "one") -> None:
    async with Outbox(data_dir, incarnation) as outbox:
        events = [make_event(f"{incarnation}-{i}", tenant_id=f"tenant-{i % 7}") for i in range(num_events)]
        await asyncio.gather(*(outbox.close(event) for event in events))


def request_ids(broker: KafkaBroker, settings: GatewaySettings) -> Counter[str]:
    records = read_events(broker, settings.kafka_topic)
    return Counter(msgspec.json.decode(record.value)["request_id"] for record in records)


@pytest.fixture
def producer(settings: GatewaySettings, tmp_path: Path) -> Iterator[OutboxProducer]:
    with closing(OutboxProducer(tmp_path, settings, threading.Event())) as opened:
        yield opened


def test_events_leave_the_outbox_as_they_are_keyed_by_tenant(
    broker: KafkaBroker, settings: GatewaySettings, producer: OutboxProducer, tmp_path: Path
) -> None:
    asyncio.run(close_events(tmp_path, 300))
    assert producer.ship() == 300
    assert list_folders(tmp_path) == []
    records = read_events(broker, settings.kafka_topic)
    sent = {msgspec.json.decode(record.value)["request_id"]: record for record in records}
    for i in range(300):
        event = make_event(f"one-{i}", tenant_id=f"tenant-{i % 7}")
        record = sent[event.request_id]
        assert record.value == msgspec.json.encode(event)
        assert record.key == event.tenant_id.encode()
        assert dict(record.headers) == {"schema_version": str(event.schema_version).encode()}
    partitions = {record.key: record.partition for record in records}
    assert all(partitions[record.key] == record.partition for record in records)


def test_the_producer_is_idempotent_on_the_wire(
    broker: KafkaBroker, settings: GatewaySettings, producer: OutboxProducer, tmp_path: Path
) -> None:
    asyncio.run(close_events(tmp_path, 300))
    producer.ship()
    batches = stored_batches(broker, settings.kafka_topic)
    # With the gateway's counts.
    assert sum(batch.num_records for batch in batches) == 301
    assert {batch.compression for batch in batches} == {ZSTD}
    assert len({batch.producer_id for batch in batches}) == 1
    assert all(batch.producer_id >= 0 and batch.producer_epoch >= 0 and batch.base_sequence >= 0 for batch in batches)


def test_a_record_that_no_broker_takes_is_set_aside_and_the_rest_passes(
    broker: KafkaBroker, settings: GatewaySettings, producer: OutboxProducer, tmp_path: Path
) -> None:
    async def close() -> None:
        async with Outbox(tmp_path, "one") as outbox:
            await outbox.close(make_event("small"))
            await outbox.close(make_event("huge", user_id="u" * 1_100_000))

    asyncio.run(close())
    producer.ship()
    assert request_ids(broker, settings) == {"small": 1}
    [folder] = list_folders(tmp_path)
    with closing(Journal.open(folder)) as journal:
        assert (journal.count_closed(), journal.count_refused()) == (0, 1)


def test_a_topic_that_was_deleted_is_made_again_and_nothing_in_the_outbox_is_lost(
    broker: KafkaBroker, settings: GatewaySettings, producer: OutboxProducer, tmp_path: Path
) -> None:
    asyncio.run(close_events(tmp_path, 50))
    producer.ship()
    with admin_of(broker) as admin:
        admin.delete_topics([settings.kafka_topic])
    asyncio.run(close_events(tmp_path, 80, incarnation="two"))
    for _ in range(10):
        try:
            producer.ship()
            break
        except KafkaUnavailable:
            continue
    assert list_folders(tmp_path) == []
    assert request_ids(broker, settings) == {f"two-{i}": 1 for i in range(80)}


def test_a_wrong_password_stops_the_start_with_one_line(tmp_path: Path) -> None:
    with running_kafka(tmp_path / "kafka", user="tiergate", password="right") as broker:
        access = {
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_mechanism": "PLAIN",
            "kafka_user": "tiergate",
        }
        asyncio.run(close_events(tmp_path, 3))
        wrong = kafka_settings(broker, topic="usage", kafka_password="wrong", **access)
        with closing(OutboxProducer(tmp_path, wrong, threading.Event())) as producer:
            with pytest.raises(ConfigError, match="TIERGATE_KAFKA_PASSWORD") as caught:
                producer.ship()
            assert "\n" not in str(caught.value)
        right = kafka_settings(broker, topic="usage", kafka_password="right", **access)
        with closing(OutboxProducer(tmp_path, right, threading.Event())) as producer:
            assert producer.ship() == 3
