"""The benchmark's events are rows as the consumer writes them, and all its questions have an answer."""

from benchmarks.usage_queries import measure


def test_a_few_events_are_made_and_asked(clickhouse_url: str) -> None:
    found = measure(clickhouse_url, num_events=2_000, num_tenants=20, rounds=1)
    assert found["rows"]["usage_events"] >= 2_000  # type: ignore[index]
    assert found["rows"]["usage_days"] > 0  # type: ignore[index]
