"""Moves usage events from Kafka into ClickHouse: `tiergate consumer` when Kafka is configured.

A batch is committed only after ClickHouse has its rows and the dead-letter topic has the events that cannot become
rows. After a crash in between the batch is read again, and ClickHouse deduplicates.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from gateway.kafka_settings import KafkaSettings
from gateway.metering.consumer_metrics import ConsumerMetrics
from gateway.metering.intake import Intake
from gateway.metering.kafka.connection import KafkaUnavailable, connect_admin
from gateway.metering.kafka.dead_letters import dead_letter
from gateway.metering.kafka.producer import COUNTS, KIND_HEADER
from gateway.metering.kafka.publisher import Publisher
from gateway.metering.kafka.reader import GroupReader, Superseded
from gateway.metering.kafka.topics import ensure_topics
from gateway.metering.rollups.keeper import keeping_rollups
from gateway.metering.rounds import Rounds, stop_on_signals
from gateway.metering.status import status_served
from gateway.metering.store import UsageStore
from gateway.settings import ConfigError, GatewaySettings


class RecordBatch:
    """Records that were read but have not landed yet: the source that `Intake` takes events from."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records
        self.refused: dict[int, str] = {}
        counts = (KIND_HEADER, COUNTS)
        self._waiting = {
            position: record for position, record in enumerate(records) if counts not in (record.headers or ())
        }
        self.counts = [record.value or b"" for record in records if counts in (record.headers or ())]

    def rows(self) -> list[tuple[int, bytes]]:
        return [(position, record.value or b"") for position, record in self._waiting.items()]

    def delete_closed(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            del self._waiting[seq]

    def refuse(self, seq: int, reason: str) -> None:
        self.refused[seq] = reason
        del self._waiting[seq]


class TopicConsumer:
    def __init__(
        self, settings: KafkaSettings, store: UsageStore, intake: Intake, stop: threading.Event, **options: Any
    ) -> None:
        self._settings = settings
        self._store = store
        self._intake = intake
        self._reader = GroupReader(settings, stop, **options)
        self._publisher = Publisher(settings, stop)
        self._held: RecordBatch | None = None
        self._has_topics = False
        self._was_prepared = False
        """Whether the settings have been valid once."""

    @property
    def reader(self) -> GroupReader:
        return self._reader

    def _prepare(self) -> None:
        """Create or check the topics. Raises KafkaUnavailable or ConfigError."""
        if not self._has_topics:
            admin = connect_admin(self._settings)
            try:
                ensure_topics(admin, self._settings)
            finally:
                admin.close()
            self._has_topics = self._was_prepared = True

    def consume(self) -> int:
        """Process one batch, from reading to commit; returns its size.

        Raises TargetUnavailable, and then the batch waits; ConfigError if Kafka rejects our settings before they have
        ever been valid.
        """
        try:
            self._prepare()
            return self._consume()
        except Superseded:
            self._held = None
        except ConfigError as error:
            if not self._was_prepared:
                raise
            # The settings were valid before, so the cluster has changed; the change may be undone.
            self._restart()
            raise KafkaUnavailable(str(error)) from error
        except KafkaUnavailable:
            self._restart()
            raise
        return 0

    def close(self) -> None:
        self._publisher.close()
        self._reader.close()

    def _consume(self) -> int:
        if self._held is not None:
            self._reader.hold(self._held.records)
        elif records := self._reader.collect():
            self._held = RecordBatch(records)
        # Also without a batch: readiness depends on whether ClickHouse can be reached.
        self._store.prepare()
        batch = self._held
        if batch is None:
            return 0
        self._intake.land(batch, batch.rows())
        self._intake.land_counts(batch.counts)
        if batch.refused:
            letters = [dead_letter(batch.records[position], reason) for position, reason in batch.refused.items()]
            self._publisher.publish(self._settings.kafka_dead_letter_topic, letters)
        self._reader.commit(batch.records)
        self._held = None
        return len(batch.records)

    def _restart(self) -> None:
        """Drop the connection and the held batch, which is read again."""
        self._held = None
        self._has_topics = False
        with suppress(Exception):
            self._reader.close()


def run(settings: GatewaySettings, clickhouse_url: str) -> int:
    """Consume until SIGTERM or SIGINT; returns the exit status. Raises ConfigError."""
    stop, rounds = stop_on_signals(), Rounds("ClickHouse or Kafka")
    store = UsageStore(clickhouse_url)
    metrics = ConsumerMetrics(rounds)
    consumer = TopicConsumer(settings, store, Intake(store, on_landed=metrics.count), stop)
    metrics.show_lag(consumer.reader.lag)
    with ExitStack() as stack:
        stack.callback(store.close)
        stack.callback(consumer.close)
        stack.enter_context(
            status_served(
                settings.host,
                settings.consumer_port,
                setting="TIERGATE_CONSUMER_PORT",
                rounds=rounds,
                registry=metrics.registry,
                key=settings.metrics_key,
            )
        )
        stack.enter_context(keeping_rollups(settings, stop))
        rounds.run(consumer.consume, stop, poll_s=0.0)
    return 0
