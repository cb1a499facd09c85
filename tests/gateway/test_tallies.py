"""What is counted cheaply is shown as prometheus_client would show it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from gateway.tallies import CountedElsewhere, Distribution, Lately, Tally

BOUNDS = (0.1, 0.5, 2.0)


def shown(collector: Collector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return lines(registry)


def lines(registry: CollectorRegistry) -> list[str]:
    return sorted(line for line in generate_latest(registry).decode().splitlines() if "_created" not in line)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3) | st.sampled_from(BOUNDS)), max_size=30))
def test_a_distribution_is_prometheus_histogram(observed: Sequence[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("times_seconds", "Times", ["who"], buckets=BOUNDS, registry=registry)
    ours = Distribution("times_seconds", "Times", ("who",), bounds=BOUNDS)
    for who, value in observed:
        theirs.labels(who).observe(value)
        ours.observe((who,), value)
    assert shown(ours) == lines(registry)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100)), max_size=30))
def test_a_tally_is_prometheus_counter(counted: Sequence[tuple[str, int]]) -> None:
    registry = CollectorRegistry()
    theirs = Counter("things", "Things", ["who"], registry=registry)
    ours = Tally("things", "Things", ("who",))
    for who, count in counted:
        theirs.labels(who).inc(count)
        ours.add((who,), count)
    assert shown(ours) == lines(registry)


def test_what_somebody_else_counts_is_read_when_it_is_asked_for() -> None:
    counts = {("a",): 1}
    collector = CountedElsewhere("things", "Things", ("who",), lambda: counts)
    assert 'things_total{who="a"} 1.0' in shown(collector)
    counts[("a",)] = 5
    assert 'things_total{who="a"} 5.0' in shown(collector)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abcdef"), st.integers(1, 100)), max_size=40),
    st.integers(1, 4),
)
def test_lately_shows_the_largest_of_the_last_minutes(added: list[tuple[int, str, int]], most: int) -> None:
    now = 0.0
    lately = Lately("tokens", "Tokens", "who", most=most, clock=lambda: now)
    all_added = []
    for seconds, who, count in added:
        now += seconds
        lately.add(who, count)
        all_added.append((now, who, count))
    first_minute = int(now) // 60 - Lately.MINUTES
    sums: dict[str, int] = {}
    for at, who, count in all_added:
        if int(at) // 60 > first_minute:
            sums[who] = sums.get(who, 0) + count
    [family] = lately.collect()
    found = {sample.labels["who"]: sample.value for sample in family.samples}
    assert sorted(found.values(), reverse=True) == sorted(sums.values(), reverse=True)[:most]
    assert all(sums[who] == value for who, value in found.items())
