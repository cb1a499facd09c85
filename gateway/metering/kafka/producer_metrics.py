"""The producer's metrics."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.metering.backlog import read_waiting
from gateway.metering.kafka.publisher import Published
from gateway.metering.rounds import Rounds

_WAITING = (
    ("tiergate_outbox_waiting_events", "Usage events in this machine's outboxes that wait for Kafka", "num_events"),
    ("tiergate_outbox_bytes", "What the outboxes hold, on the disk", "num_bytes"),
    ("tiergate_usage_refused_rows", "Usage events that nothing takes, set aside in the outboxes", "num_refused"),
)


class ProducerMetrics:
    def __init__(self, data_dir: Path, rounds: Rounds) -> None:
        self.registry = CollectorRegistry()
        self._published = Counter(
            "tiergate_producer_events", "Usage events that Kafka acknowledged, since the start", registry=self.registry
        )
        self._set_aside = Counter(
            "tiergate_producer_set_aside_events",
            "Usage events that no broker takes, set aside in their outboxes, since the start",
            registry=self.registry,
        )
        self._gauge("tiergate_kafka_is_there", "1 while Kafka takes usage", lambda: float(rounds.is_target_there))
        for name, help_text, attribute in _WAITING:
            self._gauge(name, help_text, partial(_look, data_dir, attribute))

    def count(self, published: Published) -> None:
        self._published.inc(len(published.acknowledged))
        self._set_aside.inc(len(published.refused))

    def _gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        Gauge(name, help_text, registry=self.registry).set_function(value)


def _look(data_dir: Path, attribute: str) -> float:
    return float(getattr(read_waiting(data_dir), attribute))
