"""From Kafka into ClickHouse: nothing lost, nothing twice, and what is wrong in the dead letters."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.metering.drain import TargetUnavailable
from gateway.metering.intake import Intake
from gateway.metering.journal import encode_event
from gateway.metering.kafka.consumer import TopicConsumer
from gateway.metering.kafka.dead_letters import list_dead_letters, replay_dead_letters
from gateway.metering.kafka.producer import OutboxProducer
from gateway.metering.kafka.publisher import Publisher, Record
from gateway.metering.outbox import Outbox
from gateway.metering.schema import connect_migrated
from gateway.metering.store import UsageStore
from gateway.settings import GatewaySettings
from protocol.usage import UsageEvent
from tests.support.clickhouse import start_clickhouse, url_at
from tests.support.events import make_event
from tests.support.kafka import KafkaBroker
from tests.support.kafka_clients import admin_of, read_all
from tests.support.platform import wait_until
from tests.support.ports import free_port

DEADLINE_S = 60


def events(num_events: int, name: str = "r") -> list[UsageEvent]:
    return [make_event(f"{name}-{i}", tenant_id=f"tenant-{i % 7}") for i in range(num_events)]


def publish(settings: GatewaySettings, *values: bytes, key: bytes = b"acme") -> None:
    with closing(Publisher(settings, threading.Event())) as publisher:
        publisher.publish(settings.kafka_topic, [Record(key, value, []) for value in values])


def ship(data_dir: Path, settings: GatewaySettings, shipped: list[UsageEvent]) -> None:
    async def close() -> None:
        async with Outbox(data_dir, "one") as outbox:
            await asyncio.gather(*(outbox.close(event) for event in shipped))

    asyncio.run(close())
    with closing(OutboxProducer(data_dir, settings, threading.Event())) as producer:
        for _ in range(10):
            with suppress(TargetUnavailable):
                if producer.ship() == len(shipped):
                    return
    raise AssertionError("not shipped")


def rows(url: str) -> Counter[str]:
    """Request id -> rows, less copies."""
    with connect_migrated(url) as client:
        found = client.query("SELECT request_id FROM usage_events FINAL").result_rows
    return Counter(request_id for (request_id,) in found)


class Consumers:
    """TopicConsumers in threads, each with a connection of its own to ClickHouse."""

    def __init__(self, settings: GatewaySettings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._running: list[tuple[threading.Event, threading.Thread]] = []

    def start(self, **options: Any) -> threading.Event:
        """The event stops it."""
        stop = threading.Event()
        thread = threading.Thread(target=self._consume, args=(stop, options))
        thread.start()
        self._running.append((stop, thread))
        return stop

    def end(self) -> None:
        for stop, _ in self._running:
            stop.set()
        for _, thread in self._running:
            thread.join(timeout=DEADLINE_S)

    def _consume(self, stop: threading.Event, options: dict[str, Any]) -> None:
        with ExitStack() as stack:
            store = stack.enter_context(closing(UsageStore(self._url)))
            consumer = TopicConsumer(self._settings, store, Intake(store), stop, **options)
            stack.enter_context(closing(consumer))
            while not stop.is_set():
                with suppress(TargetUnavailable):
                    consumer.consume()


@pytest.fixture
def consumers(settings: GatewaySettings, clickhouse_url: str) -> Iterator[Consumers]:
    started = Consumers(settings, clickhouse_url)
    try:
        yield started
    finally:
        started.end()


def test_two_consumers_share_the_partitions_and_each_event_is_one_row(
    settings: GatewaySettings, clickhouse_url: str, consumers: Consumers, tmp_path: Path
) -> None:
    """The second one comes, and the first one leaves, in mid-load: partitions move twice."""
    ship(tmp_path, settings, events(3000, "a"))
    first = consumers.start(batch=200)
    wait_until(lambda: len(rows(clickhouse_url)) > 200, deadline_s=DEADLINE_S)
    consumers.start(batch=200)
    ship(tmp_path, settings, events(3000, "b"))
    first.set()
    ship(tmp_path, settings, events(1000, "c"))
    wanted = {event.request_id for name, num in (("a", 3000), ("b", 3000), ("c", 1000)) for event in events(num, name)}
    wait_until(lambda: len(rows(clickhouse_url)) == 7000, deadline_s=DEADLINE_S)
    counts = rows(clickhouse_url)
    assert set(counts) == wanted and set(counts.values()) == {1}


def test_dead_letters_carry_their_reason_and_are_replayed(
    broker: KafkaBroker, settings: GatewaySettings, clickhouse_url: str, consumers: Consumers, tmp_path: Path
) -> None:
    good, other = make_event("good"), make_event("good", completion_tokens=31)
    ship(tmp_path, settings, [good])
    wrong = [
        b"{",
        encode_event(make_event("old", schema_version=99)),
        encode_event(make_event("bad", prompt_tokens=-1)),
    ]
    publish(settings, *wrong, encode_event(other))
    stop = consumers.start()
    wait_until(lambda: len(read_all(broker, settings.kafka_dead_letter_topic)) == 4, deadline_s=DEADLINE_S)
    letters = list_dead_letters(settings)
    kinds = sorted(letter.reason.partition(":")[0] for letter in letters)
    assert kinds == ["differing_duplicate", "out_of_range", "schema_version", "undecodable"]
    assert all(letter.origin.startswith(f"{settings.kafka_topic}/") for letter in letters)
    assert {letter.record.value for letter in letters} == {*wrong, encode_event(other)}
    assert rows(clickhouse_url) == {"good": 1}

    with connect_migrated(clickhouse_url) as client:
        client.command("TRUNCATE TABLE usage_events")
    assert replay_dead_letters(settings, threading.Event()) == 4
    assert list_dead_letters(settings) == []
    wait_until(lambda: rows(clickhouse_url) == {"good": 1}, deadline_s=DEADLINE_S)
    wait_until(lambda: len(list_dead_letters(settings)) == 3, deadline_s=DEADLINE_S)
    stop.set()


def test_a_batch_waits_while_clickhouse_is_away(settings: GatewaySettings, tmp_path: Path, broker: KafkaBroker) -> None:
    port = free_port()
    ship(tmp_path, settings, events(500))
    consumers = Consumers(settings, url_at(port))
    consumers.start()
    server = start_clickhouse(tmp_path / "clickhouse", port)
    try:
        wait_until(lambda: len(rows(server.url)) == 500, deadline_s=DEADLINE_S)
        server.kill()
        ship(tmp_path, settings, events(500, "late"))
        server = start_clickhouse(tmp_path / "clickhouse", port)
        wait_until(lambda: len(rows(server.url)) == 1000, deadline_s=DEADLINE_S)
    finally:
        consumers.end()
        server.kill()


def test_the_lag_is_what_kafka_acknowledged_and_no_consumer_committed(
    settings: GatewaySettings, clickhouse_url: str, tmp_path: Path
) -> None:
    """Also of what comes while ClickHouse is away. Each outbox's counts are a record, too."""
    stop = threading.Event()
    store = UsageStore(url_at(free_port()))
    ship(tmp_path, settings, events(500))
    with closing(TopicConsumer(settings, store, Intake(store), stop)) as consumer:
        wait_until(lambda: lag_of(consumer) == 501, deadline_s=DEADLINE_S)
        ship(tmp_path, settings, events(300, "late"))
        wait_until(lambda: lag_of(consumer) == 802, deadline_s=DEADLINE_S)
    with (
        closing(UsageStore(clickhouse_url)) as store,
        closing(TopicConsumer(settings, store, Intake(store), stop)) as consumer,
    ):
        wait_until(lambda: lag_of(consumer) == 0 and len(rows(clickhouse_url)) == 800, deadline_s=DEADLINE_S)


def lag_of(consumer: TopicConsumer) -> int:
    """After a round; -1 before it has partitions."""
    with suppress(TargetUnavailable):
        consumer.consume()
    lag = consumer.reader.lag()
    return sum(lag.values()) if lag else -1


def test_a_topic_made_again_is_read_from_its_beginning(
    broker: KafkaBroker, settings: GatewaySettings, clickhouse_url: str, consumers: Consumers, tmp_path: Path
) -> None:
    """Offsets of the old topic would skip what the new one holds."""
    ship(tmp_path, settings, events(400, "old"))
    consumers.start()
    wait_until(lambda: len(rows(clickhouse_url)) == 400, deadline_s=DEADLINE_S)
    with admin_of(broker) as admin:
        admin.delete_topics([settings.kafka_topic])
    ship(tmp_path, settings, events(900, "new"))
    wait_until(lambda: len(rows(clickhouse_url)) == 1300, deadline_s=DEADLINE_S)
    assert set(rows(clickhouse_url).values()) == {1}


def test_partitions_that_are_added_are_read_though_polls_end_before_the_group_is_joined(
    broker: KafkaBroker,
    settings: GatewaySettings,
    clickhouse_url: str,
    consumers: Consumers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.metering.kafka.reader._POLL_MS", 1)
    ship(tmp_path, settings, events(100, "old"))
    consumers.start()
    wait_until(lambda: len(rows(clickhouse_url)) == 100, deadline_s=DEADLINE_S)
    with admin_of(broker) as admin:
        admin.create_partitions({settings.kafka_topic: 12})
    ship(tmp_path, settings, events(100, "new"))
    wait_until(lambda: len(rows(clickhouse_url)) == 200, deadline_s=DEADLINE_S)


def test_what_gateways_count_goes_the_same_way(
    settings: GatewaySettings, consumers: "Consumers", clickhouse_url: str, tmp_path: Path
) -> None:
    ship(tmp_path, settings, events(20))
    consumers.start()
    with connect_migrated(clickhouse_url) as client:
        query = "SELECT sum(num_admitted), sum(num_closed) FROM admissions FINAL"
        wait_until(lambda: client.query(query).result_rows == [(20, 20)], deadline_s=DEADLINE_S)
