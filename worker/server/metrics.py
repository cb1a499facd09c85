"""`GET /metrics`: vLLM's names, labels and buckets under our prefix, so that existing dashboards need one change."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.server.gpu import find_gpus

if TYPE_CHECKING:
    from worker.engine.engine import Engine
    from worker.guided import GrammarCompiler

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_ANSWERS = (1, 2, 5, 10, 20)
_COMPILE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM numbers a server's engines; this server has one."""


class Metrics:
    """Latencies, observed by the event loop only; the engine's own counters are read at each scrape."""

    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_EngineCollector(engine, model_name))
        gpus = find_gpus()
        if gpus is not None:
            self._registry.register(gpus)
        self._model_name = model_name
        lengths = _lengths(engine.max_model_len)
        self.first_token_s = self._seconds("time_to_first_token_seconds", "arrival to first token", _FIRST_TOKEN_S)
        self.inter_token_s = self._seconds("inter_token_latency_seconds", "between two tokens of a request", _TOKEN_S)
        self.request_s = self._seconds("e2e_request_latency_seconds", "arrival to end", _REQUEST_S)
        self.queue_s = self._seconds("request_queue_time_seconds", "waiting before the first step", _REQUEST_S)
        self.prefill_s = self._seconds("request_prefill_time_seconds", "first step to first token", _REQUEST_S)
        self.decode_s = self._seconds("request_decode_time_seconds", "first token to last", _REQUEST_S)
        self.inference_s = self._seconds("request_inference_time_seconds", "first step to last token", _REQUEST_S)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Tokens of a prompt.", lengths)
        self.generation_tokens = self._histogram("request_generation_tokens", "Tokens of an answer.", lengths)
        self.params_n = self._histogram("request_params_n", "The parameter n.", _ANSWERS)
        self.params_max_tokens = self._histogram("request_params_max_tokens", "The bound of an answer.", lengths)
        self.grammar_compile_s = self._seconds("grammar_compile_seconds", "a new schema or grammar", _COMPILE_S)
        self.constrained = Counter(
            "tiergate_constrained_requests",
            "Requests whose answers follow a grammar.",
            _LABELS,
            registry=self._registry,
        ).labels(model_name, _ENGINE)
        self._finished = Counter(
            "tiergate_request_success",
            "Requests that ended by themselves.",
            [*_LABELS, "finished_reason"],
            registry=self._registry,
        )
        self._failed = Counter(
            "tiergate_request_failure",
            "Requests that were refused or failed.",
            [*_LABELS, "code"],
            registry=self._registry,
        )

    def watch_grammars(self, compiler: "GrammarCompiler") -> None:
        self._registry.register(_GrammarCollector(compiler, self._model_name))

    def count_finished(self, reason: str) -> None:
        self._finished.labels(self._model_name, _ENGINE, reason).inc()

    def count_failed(self, code: str) -> None:
        self._failed.labels(self._model_name, _ENGINE, code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _seconds(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(name, f"Seconds: {what}.", buckets)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"tiergate_{name}", what, _LABELS, registry=self._registry, buckets=buckets)
        return histogram.labels(self._model_name, _ENGINE)


def _lengths(window: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to the window."""
    bounds = [digit * 10**power for power in range(len(str(window))) for digit in (1, 2, 5)]
    return tuple([float(bound) for bound in bounds if bound <= window])


class _GrammarCollector(Collector):
    def __init__(self, compiler: "GrammarCompiler", model_name: str) -> None:
        self._compiler = compiler
        self._labels = [model_name, _ENGINE]

    def collect(self) -> Iterator[Metric]:
        num_hits = self._compiler.num_hits
        for name, what, value in (
            ("grammar_cache_queries", "Schemas and grammars looked up.", num_hits + self._compiler.num_misses),
            ("grammar_cache_hits", "Schemas and grammars found.", num_hits),
        ):
            family = CounterMetricFamily(f"tiergate_{name}", what, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family


class _EngineCollector(Collector):
    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._engine = engine
        self._labels = [model_name, _ENGINE]

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
        yield self._counter("nan_rows", "Requests whose figures were not finite.", load.num_nan_rows_total)
        yield self._iteration_tokens()
        yield self._cache_config_info(load.block_size, load.num_blocks)
        yield from self._kernels_refused()
        if load.adapters:
            yield self._lora_requests_info(load.num_adapter_slots)

    def _iteration_tokens(self) -> Metric:
        sizes = self._engine.step_sizes
        family = HistogramMetricFamily("tiergate_iteration_tokens_total", "Tokens of a step.", labels=_LABELS)
        family.add_metric(self._labels, sizes.cumulated(), sizes.num_tokens)
        return family

    def _cache_config_info(self, block_size: int, num_blocks: int) -> Metric:
        """num_gpu_blocks is vLLM's name, whatever device the blocks are on."""
        said = {
            "block_size": str(block_size),
            "num_gpu_blocks": str(num_blocks),
            "cache_dtype": self._engine.cache_dtype,
            "enable_prefix_caching": "True",
        }
        family = GaugeMetricFamily("tiergate_cache_config_info", "The KV cache.", labels=[*_LABELS, *said])
        family.add_metric([*self._labels, *said.values()], 1)
        return family

    def _kernels_refused(self) -> Iterator[Metric]:
        refused = self._engine.kernels_refused
        if refused:
            family = GaugeMetricFamily(
                "tiergate_kernel_refused", "Operations of the GPU that torch computes.", labels=["operation", "reason"]
            )
            for operation, reason in refused.items():
                family.add_metric([operation, reason], 1)
            yield family

    def _lora_requests_info(self, max_lora: int) -> Metric:
        """As in vLLM, the labels hold the adapters' names and the value is the time. max_lora: number of slots."""
        running, waiting = (",".join(sorted(names)) for names in self._engine.adapters_in_use())
        family = GaugeMetricFamily(
            "tiergate_lora_requests_info",
            "Adapters of running and of waiting requests.",
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        family.add_metric([str(max_lora), waiting, running], time.time())
        return family

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"tiergate_{name}", what, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, what: str, value: float) -> Metric:
        family = CounterMetricFamily(f"tiergate_{name}", what, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
