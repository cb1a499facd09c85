"""Moves usage events from the outboxes of this machine's gateways into ClickHouse: `tiergate consumer`.

An event is deleted from its outbox only after ClickHouse acknowledged it, so a crash anywhere ships it again and
ClickHouse deduplicates. With Kafka, the same events pass through `producer` before they reach the store.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gateway.metering.consumer_metrics import ConsumerMetrics
from gateway.metering.drain import OutboxDrain
from gateway.metering.intake import Intake, Landed
from gateway.metering.journal import Journal
from gateway.metering.kafka.library import check_library
from gateway.metering.rollups.keeper import keeping_rollups
from gateway.metering.rounds import Rounds, stop_on_signals
from gateway.metering.status import status_served
from gateway.metering.store import UsageStore
from gateway.settings import ConfigError, GatewaySettings

BATCH = 20_000


def run(settings: GatewaySettings) -> int:
    """Ship until SIGTERM or SIGINT; returns the exit status. Raises ConfigError."""
    url = settings.clickhouse_url
    if not url:
        raise ConfigError(f"TIERGATE_CLICKHOUSE_URL: not set, so usage waits in the outboxes of {settings.data_dir}")
    if settings.kafka_bootstrap_servers:
        check_library()
        from gateway.metering.kafka.consumer import run as run_from_kafka

        return run_from_kafka(settings, url)
    stop, rounds = stop_on_signals(), Rounds("ClickHouse")
    metrics = ConsumerMetrics(rounds)
    metrics.show_waiting(settings.data_dir)
    with (
        closing(UsageStore(url)) as store,
        status_served(
            settings.host,
            settings.consumer_port,
            setting="TIERGATE_CONSUMER_PORT",
            rounds=rounds,
            registry=metrics.registry,
            key=settings.metrics_key,
        ),
        keeping_rollups(settings, stop),
    ):
        Consumer(settings.data_dir, store, on_landed=metrics.count).run(stop, rounds)
    return 0


class Consumer:
    def __init__(
        self,
        data_dir: Path,
        store: UsageStore,
        *,
        batch: int = BATCH,
        on_landed: Callable[[Landed], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._intake = Intake(store, on_landed=on_landed)
        self._drain = OutboxDrain(data_dir, self._ship_journal)
        self._batch = batch

    def run(self, stop: threading.Event, rounds: Rounds) -> None:
        """Ship until `stop` is set; while ClickHouse is unavailable, retry at growing intervals."""
        rounds.run(self._round, stop)

    def ship(self) -> int:
        """Ship every event that is closed by now; returns how many. Raises StoreUnavailable."""
        return self._drain.run_once()

    def _round(self) -> None:
        self._store.prepare()
        self.ship()

    def _ship_journal(self, journal: Journal) -> int:
        # Read before the events, so that the counts never run ahead of the shipped events.
        counts = journal.read_counts()
        num_shipped = 0
        while rows := journal.read_encoded(self._batch):
            self._intake.land(journal, rows)
            num_shipped += len(rows)
            if len(rows) < self._batch:
                break
        if counts:
            self._intake.land_counts([record for _, record in counts])
            journal.delete_counts(seq for seq, _ in counts)
        return num_shipped
