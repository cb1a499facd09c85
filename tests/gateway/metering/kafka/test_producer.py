"""From the outboxes into Kafka: what leaves, what stays, and what is on the wire."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.metering.kafka.connection import KafkaUnavailable
from gateway.metering.kafka.producer import OutboxProducer, ship_round
from gateway.metering.outbox import Outbox
from gateway.settings import GatewaySettings
from tests.support.cli import tiergate
from tests.support.events import make_event
from tests.support.kafka import KafkaBroker
from tests.support.kafka_clients import admin_of, kafka_settings, read_events, stored_batches, writing_refused
from tests.support.ports import free_port

ZSTD = 4
DEADLINE_S = 60.0


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


def ship_once_kafka_answers(producer: OutboxProducer) -> int:
    """The library gives a connection a few seconds, which a busy machine may take."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return producer.ship()
        except KafkaUnavailable:
            if time.monotonic() > deadline:
                raise


def test_a_wrong_password_stops_the_start_with_one_line(tmp_path: Path) -> None:
    """Also where the cluster comes up after us, so that the password is judged later."""
    broker = KafkaBroker(tmp_path / "kafka", user="tiergate", password="right")
    access = {
        "TIERGATE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "TIERGATE_KAFKA_SASL_MECHANISM": "PLAIN",
        "TIERGATE_KAFKA_USER": "tiergate",
        "TIERGATE_KAFKA_PASSWORD": "wrong",
        "TIERGATE_KAFKA_BOOTSTRAP_SERVERS": broker.server,
        "TIERGATE_KEY_PEPPER": "p" * 16,
        "TIERGATE_DATA_DIR": str(tmp_path / "data"),
        "TIERGATE_CLICKHOUSE_URL": f"http://127.0.0.1:{free_port()}",
    }
    with ThreadPoolExecutor() as threads:
        commands = ("producer", "consumer")
        refused = [threads.submit(tiergate, command, "--log-level", "error", env=access) for command in commands]
        try:
            broker.start()
            for ended in (each.result() for each in refused):
                assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
                assert "TIERGATE_KAFKA_PASSWORD" in ended.stderr
            given = {name.removeprefix("TIERGATE_").lower(): value for name, value in access.items()}
            given |= {"kafka_password": "right"}
            asyncio.run(close_events(tmp_path, 3))
            right = kafka_settings(broker, topic="usage", **given)
            with closing(OutboxProducer(tmp_path, right, threading.Event())) as producer:
                assert ship_once_kafka_answers(producer) == 3
        finally:
            broker.kill()


def test_events_stay_while_kafka_refuses_them_and_go_once_it_takes_them_again(
    broker: KafkaBroker, settings: GatewaySettings, producer: OutboxProducer, tmp_path: Path
) -> None:
    """Who may write to a topic can change under our feet; what time mends does not stop the process."""
    asyncio.run(close_events(tmp_path, 10))
    assert ship_once_kafka_answers(producer) == 10
    asyncio.run(close_events(tmp_path, 80, incarnation="two"))
    with writing_refused(broker, settings.kafka_topic):
        with pytest.raises(KafkaUnavailable, match="TIERGATE_KAFKA_USER"):
            ship_round(producer)
        [folder] = list_folders(tmp_path)
        with closing(Journal.open(folder)) as journal:
            assert journal.count_closed() == 80
    assert ship_once_kafka_answers(producer) == 80
    wanted = {f"one-{i}" for i in range(10)} | {f"two-{i}" for i in range(80)}
    assert set(request_ids(broker, settings)) == wanted
