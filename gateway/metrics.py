"""What Prometheus scrapes at /metrics. One registry an application, so that two in a process do not collide."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metric_snapshots import Snapshot, merge, snapshot

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
_OVERHEAD_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)

_SEEN_BY_ALL = {
    "tiergate_limiter_is_local",
    "tiergate_replicas",
    "tiergate_event_loop_lag_seconds",
    "tiergate_usage_refused_rows",
}
"""Gauges that each process sees for itself: the largest is the gateway's. All other gauges are added up."""


class Tally(Collector):
    """A counter for one event loop: an addition in a dictionary, where a lock and label objects cost ten times that."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._family = name, documentation, labels
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], count: int) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + count

    def collect(self) -> Iterator[Metric]:
        name, documentation, labels = self._family
        family = CounterMetricFamily(name, documentation, labels=labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Tally(
            "tiergate_requests", "Completion requests answered, by HTTP status", ("code", "pool", "tier")
        )
        self._tokens = Tally("tiergate_tokens", "Tokens billed", ("kind", "pool", "tier"))
        self._registry.register(self._requests)
        self._registry.register(self._tokens)
        self.ttft = Histogram(
            "tiergate_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            ["pool"],
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self.preparation = Histogram(
            "tiergate_preparation_seconds",
            "From the request's arrival until a worker is called: what the gateway adds",
            buckets=_OVERHEAD_BUCKETS_S,
            registry=self._registry,
        )
        self.num_in_flight = 0
        in_flight = Gauge("tiergate_requests_in_flight", "Requests under way", registry=self._registry)
        in_flight.set_function(lambda: self.num_in_flight)
        self.refusals = Counter(
            "tiergate_limit_refusals_total",
            "429 answers by the limit that binds",
            ["limit", "tier"],
            registry=self._registry,
        )
        self.retries = Counter(
            "tiergate_upstream_retries_total", "Requests sent to another replica", ["pool"], registry=self._registry
        )
        self.is_limiter_local = Gauge(
            "tiergate_limiter_is_local", "1 while Redis is away and limits are local", registry=self._registry
        )
        self.local_decisions = Gauge(
            "tiergate_limiter_local_decisions",
            "Requests that were admitted or refused without Redis, since the start",
            registry=self._registry,
        )
        self.waiting_settlements = Gauge(
            "tiergate_settlements_waiting", "Settlements that Redis has not taken yet", registry=self._registry
        )
        self.under_way = Gauge(
            "tiergate_outbox_under_way", "Usage events that are not durable yet", registry=self._registry
        )
        self.refused_rows = Gauge(
            "tiergate_usage_refused_rows",
            "Usage events that ClickHouse refused, set aside in this data directory's outboxes",
            registry=self._registry,
        )
        self.replicas = Gauge("tiergate_replicas", "Healthy replicas", ["pool"], registry=self._registry)
        self.overload_refusals = Counter(
            "tiergate_overload_refusals_total",
            "503 answers because this gateway is at its capacity, by priority class",
            ["class"],
            registry=self._registry,
        )
        self.loop_lag = Gauge(
            "tiergate_event_loop_lag_seconds",
            "How late events are handled, the smaller of two measurements",
            registry=self._registry,
        )
        self.processes = Gauge("tiergate_gateway_processes", "Processes that this gateway is", registry=self._registry)
        self.processes.set(1)

    def count_request(self, status: int, pool: str, tier: str) -> None:
        self._requests.add((str(status), pool, tier), 1)

    def count_tokens(self, pool: str, tier: str, *, num_prompt: int, num_completion: int) -> None:
        self._tokens.add(("prompt", pool, tier), num_prompt)
        self._tokens.add(("completion", pool, tier), num_completion)

    def observe_ttft(self, pool: str, seconds: float) -> None:
        self.ttft.labels(pool).observe(seconds)

    def snapshot(self) -> Snapshot:
        return snapshot(self._registry)


def merge_processes(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The metrics of a gateway of several processes, from those of each."""
    return merge(snapshots, largest=_SEEN_BY_ALL)
