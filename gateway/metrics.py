"""What Prometheus scrapes at /metrics. One registry an application, so that two in a process do not collide."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tiergate_requests_total",
            "Completion requests answered, by HTTP status",
            ["code", "pool", "tier"],
            registry=self._registry,
        )
        self.tokens = Counter(
            "tiergate_tokens_total", "Tokens billed", ["kind", "pool", "tier"], registry=self._registry
        )
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
        self._children: dict[tuple[object, ...], Any] = {}

    def count_request(self, status: int, pool: str, tier: str) -> None:
        self._child(self.requests, str(status), pool, tier).inc()

    def count_tokens(self, pool: str, tier: str, *, num_prompt: int, num_completion: int) -> None:
        self._child(self.tokens, "prompt", pool, tier).inc(num_prompt)
        self._child(self.tokens, "completion", pool, tier).inc(num_completion)

    def observe_ttft(self, pool: str, seconds: float) -> None:
        self._child(self.ttft, pool).observe(seconds)

    def _child(self, metric: Any, *labels: str) -> Any:
        """As `labels`, which checks and copies its arguments each time and costs more than counting."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def snapshot(self) -> Snapshot:
        return snapshot(self._registry)


def merge_processes(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The metrics of a gateway of several processes, from those of each."""
    return merge(snapshots, largest=_SEEN_BY_ALL)
