"""The consumer's metrics, the same whether it reads from Kafka or from the outboxes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.metering.backlog import read_waiting
from gateway.metering.intake import Landed
from gateway.metering.rounds import Rounds


class ConsumerMetrics:
    def __init__(self, rounds: Rounds) -> None:
        self.registry = CollectorRegistry()
        self._inserted = Counter(
            "tiergate_consumer_events", "Usage events that ClickHouse has, since the start", registry=self.registry
        )
        self._refused = Counter(
            "tiergate_consumer_dead_letters",
            "Usage events that can be no rows, since the start: dead letters, or set aside in their outboxes",
            ["reason"],
            registry=self.registry,
        )
        there = Gauge("tiergate_consumer_is_working", "1 while events find their way", registry=self.registry)
        there.set_function(lambda: float(rounds.is_target_there))

    def count(self, landed: Landed) -> None:
        self._inserted.inc(landed.num_inserted)
        for kind, count in landed.refused.items():
            self._refused.labels(kind).inc(count)

    def show_lag(self, lag: Callable[[], Mapping[int, int]]) -> None:
        """Expose the lag of the topic partitions that are assigned to this consumer."""
        self.registry.register(_Lag(lag))

    def show_waiting(self, data_dir: Path) -> None:
        waiting = Gauge(
            "tiergate_outbox_waiting_events",
            "Usage events in this machine's outboxes that wait for ClickHouse",
            registry=self.registry,
        )
        waiting.set_function(lambda: read_waiting(data_dir).num_events)


class _Lag(Collector):
    def __init__(self, lag: Callable[[], Mapping[int, int]]) -> None:
        self._lag = lag

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tiergate_consumer_lag_events",
            "Records that wait in this consumer's partitions",
            labels=["partition"],
        )
        for partition, count in self._lag().items():
            family.add_metric([str(partition)], count)
        yield family
