"""`GET /metrics`: vLLM's names under our prefix, so that existing dashboards need one change."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from worker.engine.engine import Engine

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class Metrics:
    """Latencies, observed by the event loop only; what the engine counts itself is read when somebody asks."""

    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_EngineCollector(engine, model_name))
        self.first_token_s = self._histogram("time_to_first_token_seconds", "arrival to first token", model_name)
        self.inter_token_s = self._histogram(
            "inter_token_latency_seconds", "between two tokens of a request", model_name, _TOKEN_S
        )
        self.request_s = self._histogram("e2e_request_latency_seconds", "arrival to end", model_name)
        self.queue_s = self._histogram("request_queue_time_seconds", "waiting before the first step", model_name)
        self._finished = Counter(
            "tiergate_request_success",
            "Requests that ended by themselves.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._failed = Counter(
            "tiergate_request_failure",
            "Requests that were refused or failed.",
            ["model_name", "code"],
            registry=self._registry,
        )
        self._model_name = model_name

    def count_finished(self, reason: str) -> None:
        self._finished.labels(self._model_name, reason).inc()

    def count_failed(self, code: str) -> None:
        self._failed.labels(self._model_name, code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, what: str, model_name: str, buckets: tuple[float, ...] = _LATENCY_S) -> Histogram:
        histogram = Histogram(
            f"tiergate_{name}", f"Seconds: {what}.", ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(model_name)


class _EngineCollector(Collector):
    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._engine = engine
        self._labels = [model_name]

    def collect(self) -> Iterator[Metric]:
        load = self._engine.report()
        used = 1 - load.num_free_blocks / load.num_blocks
        yield self._gauge("num_requests_running", "Requests being computed.", load.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", load.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", load.prompt_tokens_total)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", load.cached_tokens_total)
        yield self._counter("num_preemptions", "Requests put back into the queue.", load.num_preemptions_total)
        yield self._counter("prompt_tokens", "Prompt tokens of started requests.", load.prompt_tokens_total)
        yield self._counter("generation_tokens", "Tokens generated.", load.completion_tokens_total)
        yield self._counter("discarded_tokens", "Tokens generated that no client got.", load.discarded_tokens_total)
        yield self._counter("failed_steps", "Steps that broke.", load.num_failed_steps_total)

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"tiergate_{name}", what, labels=["model_name"])
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, what: str, value: float) -> Metric:
        family = CounterMetricFamily(f"tiergate_{name}", what, labels=["model_name"])
        family.add_metric(self._labels, value)
        return family
