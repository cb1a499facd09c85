"""What an event is counted as, and what a gateway of several processes shows of it."""

from gateway.metric_snapshots import Snapshot
from gateway.metrics import TOP_TENANTS, Metrics, as_scraped, merge_processes
from tests.support.events import make_event

SERVED_BY = (("model", "m"), ("pool", "small"), ("tier", "pro"))


def values(shown: Snapshot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {key: value for family in shown for key, value in family.samples.items()}


def test_an_admitted_request_is_counted_by_pool_model_and_tier() -> None:
    metrics = Metrics()
    event = make_event(
        "r1",
        pool="small",
        tier="pro",
        status="cancelled",
        route_reason="simple",
        prompt_tokens=10,
        cached_prompt_tokens=4,
        completion_tokens=5,
        ttft_ms=100.0,
        total_latency_ms=500.0,
        queue_ms=20.0,
        worker_compute_ms=300.0,
    )
    metrics.count_usage(event, model="m")
    found = values(metrics.snapshot())
    assert found["tiergate_usage_events_total", (*SERVED_BY[:2], ("status", "cancelled"), SERVED_BY[2])] == 1
    assert found["tiergate_routed_requests_total", (*SERVED_BY[:2], ("reason", "simple"), SERVED_BY[2])] == 1
    assert found["tiergate_tokens_total", (("kind", "prompt"), *SERVED_BY)] == 10
    assert found["tiergate_tokens_total", (("kind", "completion"), *SERVED_BY)] == 5
    assert found["tiergate_cached_prompt_tokens_total", SERVED_BY] == 4
    # Four tokens after the first, in 0.4 s.
    assert found["tiergate_time_per_output_token_seconds_sum", SERVED_BY] == 0.1
    assert found["tiergate_request_seconds_sum", SERVED_BY] == 0.5
    assert found["tiergate_queue_seconds_sum", SERVED_BY] == 0.02
    assert found["tiergate_top_tenant_tokens", (("tenant_id", event.tenant_id),)] == 15


def test_what_a_foreign_member_does_not_tell_is_not_observed() -> None:
    metrics = Metrics()
    metrics.count_usage(make_event("r1", ttft_ms=None, completion_tokens=5, worker_compute_ms=0.0), model="m")
    metrics.count_usage(make_event("r1", ttft_ms=5.0, completion_tokens=1, worker_compute_ms=0.0), model="m")
    names = {name for name, _ in values(metrics.snapshot())}
    assert "tiergate_request_seconds_count" in names
    assert not {"tiergate_queue_seconds_count", "tiergate_time_per_output_token_seconds_count"} & names


def test_however_many_tenants_and_processes_there_are_only_the_top_is_scraped() -> None:
    processes = [Metrics(), Metrics()]
    for number in range(300):
        for metrics in processes:
            event = make_event("r1", tenant_id=f"tenant-{number}", prompt_tokens=number, completion_tokens=0)
            metrics.count_usage(event, model="m")
    shown = as_scraped(merge_processes([metrics.snapshot() for metrics in processes]))
    tenants = [value for (name, _), value in values(shown).items() if name == "tiergate_top_tenant_tokens"]
    assert sorted(tenants) == [2 * number for number in range(300 - TOP_TENANTS, 300)]


def test_an_error_without_a_code_is_an_invalid_request() -> None:
    metrics = Metrics()
    metrics.count_error(400, None, "pro")
    key = (("code", "400"), ("error", "invalid_request"), ("tier", "pro"))
    assert values(metrics.snapshot())["tiergate_request_errors_total", key] == 1
