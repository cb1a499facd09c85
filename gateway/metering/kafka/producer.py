"""Moves usage events from the outboxes of this machine's gateways into Kafka: `tiergate producer`.

A record is the event's JSON as the gateway wrote it, keyed by tenant id, so that a tenant's events share a partition.
An event is deleted from its outbox only after all in-sync replicas have the record; a crash before that sends it again.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from gateway.kafka_settings import KafkaSettings
from gateway.metering.drain import OutboxDrain
from gateway.metering.journal import Journal
from gateway.metering.kafka.connection import KafkaUnavailable, connect_admin
from gateway.metering.kafka.producer_metrics import ProducerMetrics
from gateway.metering.kafka.publisher import Published, Publisher, Record
from gateway.metering.kafka.topics import ensure_topics
from gateway.metering.rounds import Rounds, stop_on_signals
from gateway.metering.status import status_served
from gateway.settings import ConfigError, GatewaySettings

BATCH = 10_000
SCHEMA_VERSION_HEADER = "schema_version"
KIND_HEADER, COUNTS = "kind", b"gateway_counts"
"""The header of a record that holds a gateway's counts instead of an event."""


class Envelope(msgspec.Struct):
    """The event's fields that go into the record's key and header."""

    tenant_id: str = ""
    schema_version: int = 0


_decode_envelope = msgspec.json.Decoder(Envelope).decode


class OutboxProducer:
    """Used by one thread. Connects on first use, and again after a failure."""

    def __init__(
        self,
        data_dir: Path,
        settings: KafkaSettings,
        stop: threading.Event,
        *,
        batch: int = BATCH,
        on_published: Callable[[Published], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._publisher = Publisher(settings, stop)
        self._drain = OutboxDrain(data_dir, self._ship)
        self._stop = stop
        self._batch = batch
        self._on_published = on_published
        self._has_topics = False
        self.was_prepared = False
        """Whether the settings have been valid once."""

    def ship(self) -> int:
        """Send every event that is closed by now; returns how many. Raises KafkaUnavailable or ConfigError."""
        self._prepare()
        try:
            return self._drain.run_once()
        except BaseException:
            # A missing topic may be the cause, so check the topics again.
            self._has_topics = False
            raise

    def _prepare(self) -> None:
        """Create or check the topics. Raises KafkaUnavailable or ConfigError."""
        if not self._has_topics:
            admin = connect_admin(self._settings)
            try:
                ensure_topics(admin, self._settings)
            finally:
                admin.close()
            self._has_topics = self.was_prepared = True

    def close(self) -> None:
        self._publisher.close()

    def _ship(self, journal: Journal) -> int:
        # Read before the events, so that the counts never run ahead of the sent events.
        counts = journal.read_counts()
        num_shipped = 0
        while rows := journal.read_encoded(self._batch):
            self._publish(journal, rows)
            num_shipped += len(rows)
            if len(rows) < self._batch or self._stop.is_set():
                break
        if counts:
            self._publish_counts(journal, counts)
        return num_shipped

    def _publish_counts(self, journal: Journal, counts: Sequence[tuple[int, bytes]]) -> None:
        records = [Record(None, record, [(KIND_HEADER, COUNTS)]) for _, record in counts]
        self._publisher.publish(
            self._settings.kafka_topic,
            records,
            lambda published: journal.delete_counts(counts[position][0] for position in published.acknowledged),
        )

    def _publish(self, journal: Journal, rows: Sequence[tuple[int, bytes]]) -> None:
        def leave(published: Published) -> None:
            journal.delete_closed(rows[position][0] for position in published.acknowledged)
            for position, reason in published.refused:
                journal.refuse(rows[position][0], f"Kafka takes no such record: {reason}")
            self._on_published(published)

        self._publisher.publish(self._settings.kafka_topic, [as_record(event) for _, event in rows], leave)


def as_record(event: bytes) -> Record:
    """The event as a record. An undecodable event is sent as well: the consumer reports what is wrong with it."""
    try:
        envelope = _decode_envelope(event)
    except msgspec.DecodeError:
        return Record(None, event, [])
    version = str(envelope.schema_version).encode()
    return Record(envelope.tenant_id.encode(), event, [(SCHEMA_VERSION_HEADER, version)])


def run(settings: GatewaySettings) -> int:
    """Ship until SIGTERM or SIGINT; returns the exit status. Raises ConfigError."""
    if not settings.kafka_bootstrap_servers:
        raise ConfigError(f"TIERGATE_KAFKA_BOOTSTRAP_SERVERS: not set, so usage waits in {settings.data_dir}")
    stop, rounds = stop_on_signals(), Rounds("Kafka")
    metrics = ProducerMetrics(settings.data_dir, rounds)
    producer = OutboxProducer(settings.data_dir, settings, stop, on_published=metrics.count)
    with (
        closing(producer),
        status_served(
            settings.host,
            settings.producer_port,
            setting="TIERGATE_PRODUCER_PORT",
            rounds=rounds,
            registry=metrics.registry,
            key=settings.metrics_key,
        ),
    ):
        rounds.run(lambda: ship_round(producer), stop)
    return 0


def ship_round(producer: OutboxProducer) -> None:
    """Ship once. Kafka may be unavailable at the start, but its first answer must accept the settings.

    Raises KafkaUnavailable or ConfigError."""
    try:
        producer.ship()
    except ConfigError as error:
        if not producer.was_prepared:
            raise
        # The settings were valid before: the cluster's change may be undone, and the events wait.
        raise KafkaUnavailable(str(error)) from error
