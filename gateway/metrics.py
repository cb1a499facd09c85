"""The metrics that Prometheus scrapes at /metrics. One registry per application, so that two in a process can coexist.

Every request updates about a dozen metrics, which must cost only a few microseconds in all: hence tallies, whose labels
are tuples.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from gateway.metric_snapshots import Snapshot, largest_samples, merge, snapshot
from gateway.tallies import CountedElsewhere, Distribution, Lately, Tally
from protocol.usage import UsageEvent

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1.5, 3, 6, 12, 30, 60)
_TPOT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_QUEUE_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
_OVERHEAD_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)
_TOOL_BUCKETS_S = (2.5, 5, 10, 20, 60)
_GUARDRAIL_BUCKETS_S = (*_OVERHEAD_BUCKETS_S[2:], 2.5, 5, 10, 30)
TENANTS_OWN = "(tenant's own)"
"""Label value for all tools and guardrails of tenants: their names are private to the tenants, and unbounded in
number."""
PRIORITY_CLASSES = ("enterprise", "pro", "free", "batch", "unknown")
"""In the order of priority. `unknown`: requests whose key was not looked up yet, which may even be enterprise."""
_SERVED_BY = ("pool", "model", "tier")
_SCORED_BY = ("by", "pool", "tier")
TOP_TENANTS = 20
_TOP_TENANTS_A_PROCESS = 100

_SEEN_BY_ALL = {
    "tiergate_limiter_is_local",
    "tiergate_replicas",
    "tiergate_pool_saturated",
    "tiergate_pool_shedding",
    "tiergate_pool_switches",
    "tiergate_pool_requests",
    "tiergate_event_loop_lag_seconds",
    "tiergate_usage_refused_rows",
    "tiergate_usage_unreconciled_events",
    "tiergate_usage_unreconciled_tokens",
    "tiergate_outbox_is_failing",
    "tiergate_outbox_waiting_events",
    "tiergate_outbox_lag_seconds",
    "tiergate_outbox_bytes",
    "tiergate_outbox_max_bytes",
    "tiergate_outbox_free_bytes",
    "process_start_time_seconds",
    "process_max_fds",
}
"""Gauges whose value is the largest one of all processes, because each sees the same thing. Others are added up."""
_TOP = {"tiergate_top_tenant_tokens": TOP_TENANTS}
"""Family -> number of its largest samples that a scrape shows: their labels are tenants."""

ServedBy = tuple[str, str, str]
"""Pool, model and tier."""


class Metrics:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._tally(
            "tiergate_requests", "Completion requests answered, by HTTP status", ("code", *_SERVED_BY)
        )
        self._tokens = self._tally("tiergate_tokens", "Tokens billed", ("kind", *_SERVED_BY))
        self._cached_tokens = self._tally(
            "tiergate_cached_prompt_tokens", "Those of the prompt tokens that a worker had computed before", _SERVED_BY
        )
        self._usage = self._tally(
            "tiergate_usage_events",
            "Requests that were admitted and are over, by how they ended",
            ("status", *_SERVED_BY),
        )
        self._routes = self._tally(
            "tiergate_routed_requests", "The same by why they went to their pool", ("reason", *_SERVED_BY)
        )
        self._scored = self._tally(
            "tiergate_router_scored_requests", "Admitted requests by the pool that their score chose", _SCORED_BY
        )
        self._gains = self._tally(
            "tiergate_router_expected_gain",
            "Sum of their scores: of how many the large model is expected to be right where the small one is wrong",
            _SCORED_BY,
        )
        self._errors = self._tally(
            "tiergate_request_errors", "Completion requests that got an error, by its code", ("code", "error", "tier")
        )
        self.control_requests = self._tally(
            "tiergate_control_requests", "All other requests answered, by HTTP status", ("code", "area")
        )
        self.upstream_failures = self._tally(
            "tiergate_upstream_failures", "Calls to a replica that did not end well, by why", ("pool", "reason")
        )
        self.hedges = self._tally(
            "tiergate_upstream_hedges",
            "First tokens that were late and asked of a second replica, by whether that was quicker",
            ("pool", "outcome"),
        )
        self.cached_answers = self._tally(
            "tiergate_answer_cache_requests",
            "Requests that looked into the cache of answers",
            ("result", "tier"),
        )
        self._ttft = self._distribution(
            "tiergate_time_to_first_token_seconds", "From the request's arrival to its first token", _TTFT_BUCKETS_S
        )
        self._tpot = self._distribution(
            "tiergate_time_per_output_token_seconds", "Mean of a request's tokens after the first", _TPOT_BUCKETS_S
        )
        self._queue = self._distribution(
            "tiergate_queue_seconds", "Waiting in a worker of ours before its first step", _QUEUE_BUCKETS_S
        )
        self._request = self._distribution(
            "tiergate_request_seconds", "From a request's arrival to its end, where it was admitted", _REQUEST_BUCKETS_S
        )
        self._top_tenants = Lately(
            "tiergate_top_tenant_tokens",
            f"Tokens of the last {Lately.MINUTES} minutes, of the {TOP_TENANTS} tenants that had most",
            "tenant_id",
            most=_TOP_TENANTS_A_PROCESS,
            clock=clock,
        )
        self._registry.register(self._top_tenants)
        self._preparation = Distribution(
            "tiergate_preparation_seconds",
            "From the request's arrival until a worker is called: what the gateway adds",
            (),
            bounds=_OVERHEAD_BUCKETS_S,
        )
        self._registry.register(self._preparation)
        self.tool_calls = self._tally(
            "tiergate_tool_calls", "Calls of server tools, by how they ended; tenants' own are one", ("tool", "status")
        )
        self._tool = Distribution(
            "tiergate_tool_call_seconds", "What these took", ("tool",), bounds=_OVERHEAD_BUCKETS_S + _TOOL_BUCKETS_S
        )
        self._registry.register(self._tool)
        self.dropped_audit_entries = self._tally(
            "tiergate_audit_entries_dropped", "Of tool calls, while the database was away for long", ()
        )
        self.guardrail_checks = self._tally(
            "tiergate_guardrail_checks",
            "Checks by guardrails, by their outcome: passed, blocked or failed; tenants' own guardrails are one",
            ("guardrail", "side", "outcome"),
        )
        self.guardrail_failures = self._tally(
            "tiergate_guardrail_failures",
            "Checks that failed, by why, and whether the text passed (open) or was refused (closed)",
            ("guardrail", "reason", "on_failure"),
        )
        self._guardrail = Distribution(
            "tiergate_guardrail_check_seconds", "What a check took", ("guardrail",), bounds=_GUARDRAIL_BUCKETS_S
        )
        self._registry.register(self._guardrail)
        self._hold = Distribution(
            "tiergate_guardrail_hold_seconds",
            "From an answer's first text to the first that its client is sent: what guardrails add to its first token",
            (),
            bounds=_GUARDRAIL_BUCKETS_S,
        )
        self._registry.register(self._hold)
        self.num_in_flight = 0
        self._gauge("tiergate_requests_in_flight", "Requests under way").set_function(lambda: self.num_in_flight)
        self.num_connections: Callable[[], int] = lambda: 0
        self._gauge("tiergate_connections", "Clients' connections").set_function(lambda: self.num_connections())
        self.refusals = Counter(
            "tiergate_limit_refusals_total",
            "429 answers by the limit that binds",
            ["limit", "tier"],
            registry=self._registry,
        )
        self.retries = Counter(
            "tiergate_upstream_retries_total", "Requests sent to another replica", ["pool"], registry=self._registry
        )
        self.continuations = Counter(
            "tiergate_upstream_continuations_total",
            "Answers that another replica went on with after their first had failed",
            ["pool"],
            registry=self._registry,
        )
        self.is_limiter_local = self._gauge("tiergate_limiter_is_local", "1 while Redis is away and limits are local")
        self.local_decisions = self._gauge(
            "tiergate_limiter_local_decisions", "Requests that were admitted or refused without Redis, since the start"
        )
        self.waiting_settlements = self._gauge(
            "tiergate_settlements_waiting", "Settlements that Redis has not taken yet"
        )
        self.under_way = self._gauge("tiergate_outbox_under_way", "Usage events that are not durable yet")
        self.is_outbox_failing = self._gauge(
            "tiergate_outbox_is_failing", "1 while the disk takes no usage events and they are kept in memory"
        )
        self.waiting_events = self._gauge(
            "tiergate_outbox_waiting_events", "Usage events in this data directory's outboxes that are not shipped yet"
        )
        self.outbox_lag = self._gauge("tiergate_outbox_lag_seconds", "For how long the oldest of them has waited")
        self.outbox_bytes = self._gauge("tiergate_outbox_bytes", "What the outboxes hold, on the disk")
        self.outbox_max_bytes = self._gauge("tiergate_outbox_max_bytes", "From where on requests are refused")
        self.outbox_free_bytes = self._gauge("tiergate_outbox_free_bytes", "Free on the disk of the outboxes")
        self.unreconciled_events = self._gauge(
            "tiergate_usage_unreconciled_events",
            "Requests of the last 48 hours, but for the youngest, that were admitted and have no usage event",
        )
        self.unreconciled_tokens = self._gauge(
            "tiergate_usage_unreconciled_tokens",
            "Tokens of these hours by which workers' ledgers and usage events differ",
        )
        self.refused_rows = self._gauge(
            "tiergate_usage_refused_rows",
            "Usage events that ClickHouse refused, set aside in this data directory's outboxes",
        )
        self.replicas = self._gauge("tiergate_replicas", "Healthy replicas", "pool")
        self.pool_saturated = self._gauge(
            "tiergate_pool_saturated",
            "1 while best-effort requests are kept away: every replica is full",
            "pool",
        )
        self.pool_shedding = self._gauge(
            "tiergate_pool_shedding", "1 while they are kept away for others' time to first token", "pool"
        )
        self.pool_switches = self._gauge(
            "tiergate_pool_switches", "How often a pool has changed its state since the start", "pool", "state"
        )
        self.pool_requests = self._gauge(
            "tiergate_pool_requests", "Requests at the replicas of ours, as they last reported", "pool", "state"
        )
        self.overload_refusals = self._tally(
            "tiergate_overload_refusals_total",
            "503 answers because this gateway is at its capacity, by priority class",
            ("class",),
        )
        for name in PRIORITY_CLASSES:
            # Shown from the start, so that the first refusal is an increase.
            self.overload_refusals.add((name,), 0)
        self.loop_lag = self._gauge(
            "tiergate_event_loop_lag_seconds", "How late events are handled, the smaller of two measurements"
        )
        self.processes = self._gauge("tiergate_gateway_processes", "Processes that this gateway is")
        self.processes.set(1)

    def count_request(self, status: int, served_by: ServedBy) -> None:
        self._requests.add((str(status), *served_by))

    def count_error(self, status: int, code: str | None, tier: str) -> None:
        self._errors.add((str(status), code or "invalid_request", tier))

    def count_usage(self, event: UsageEvent, *, model: str) -> None:
        """Count the usage event of an admitted request, once."""
        served_by = event.pool, model, event.tier
        self._usage.add((event.status, *served_by))
        self._routes.add((event.route_reason, *served_by))
        self._tokens.add(("prompt", *served_by), event.prompt_tokens)
        self._tokens.add(("completion", *served_by), event.completion_tokens)
        if event.cached_prompt_tokens:
            self._cached_tokens.add(served_by, event.cached_prompt_tokens)
        self._top_tenants.add(event.tenant_id, event.prompt_tokens + event.completion_tokens)
        self._request.observe(served_by, event.total_latency_ms / 1000)
        if event.worker_compute_ms:
            self._queue.observe(served_by, event.queue_ms / 1000)
        if event.ttft_ms is not None and event.completion_tokens > 1:
            self._tpot.observe(
                served_by, (event.total_latency_ms - event.ttft_ms) / 1000 / (event.completion_tokens - 1)
            )

    def count_score(self, by: str, *, pool: str, tier: str, score: float) -> None:
        """by: which weights gave the score, the deciding ones or the shadow ones."""
        self._scored.add((by, pool, tier))
        self._gains.add((by, pool, tier), score)

    def observe_ttft(self, served_by: ServedBy, seconds: float) -> None:
        self._ttft.observe(served_by, seconds)

    def observe_preparation(self, seconds: float) -> None:
        self._preparation.observe((), seconds)

    def count_tool_call(self, tool: str, status: str, seconds: float) -> None:
        self.tool_calls.add((tool, status))
        self._tool.observe((tool,), seconds)

    def count_guardrail_check(self, guardrail: str, side: str, outcome: str, seconds: float) -> None:
        self.guardrail_checks.add((guardrail, side, outcome))
        self._guardrail.observe((guardrail,), seconds)

    def observe_hold(self, seconds: float) -> None:
        self._hold.observe((), seconds)

    def show(self, name: str, documentation: str, label: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """Expose a counter that is kept elsewhere, by the values of `label`."""
        self._registry.register(
            CountedElsewhere(
                name, documentation, (label,), lambda: {(value,): count for value, count in counts().items()}
            )
        )

    def snapshot(self) -> Snapshot:
        return snapshot(self._registry)

    def _tally(self, name: str, documentation: str, labels: tuple[str, ...]) -> Tally:
        tally = Tally(name, documentation, labels)
        self._registry.register(tally)
        return tally

    def _distribution(self, name: str, documentation: str, bounds: tuple[float, ...]) -> Distribution:
        distribution = Distribution(name, documentation, _SERVED_BY, bounds=bounds)
        self._registry.register(distribution)
        return distribution

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(name, documentation, labels, registry=self._registry)


def merge_processes(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The metrics of a gateway of several processes, merged from each process's."""
    return merge(snapshots, largest=_SEEN_BY_ALL)


def as_scraped(measured: Snapshot) -> Snapshot:
    """Reduces families with a sample per tenant to their largest samples."""
    return largest_samples(measured, most=_TOP)
