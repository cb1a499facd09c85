"""Metrics of several processes as one: nothing is lost, nothing counted twice, no total ever falls."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.metric_snapshots import Snapshot, merge, only_totals, render, snapshot


class Measured:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests_total", "Requests", ["code"], registry=self.registry)
        self.under_way = Gauge("under_way", "Under way", registry=self.registry)
        self.is_local = Gauge("is_local", "Local", registry=self.registry)
        self.times = Histogram("times_seconds", "Times", buckets=(0.1, 1), registry=self.registry)

    def taken(self) -> Snapshot:
        return snapshot(self.registry)


def lines(shown: Snapshot) -> list[str]:
    return [line for line in render(shown).decode().splitlines() if "_created" not in line]


def test_one_process_is_shown_as_prometheus_would() -> None:
    measured = Measured()
    measured.requests.labels("200").inc(3)
    measured.requests.labels('4"0\n4').inc()
    measured.times.observe(0.5)
    assert render(measured.taken()) == generate_latest(measured.registry)


def test_it_survives_the_way_between_processes() -> None:
    measured = Measured()
    measured.requests.labels("200").inc(3)
    measured.under_way.set(float("inf"))
    sent = msgspec.msgpack.encode(measured.taken())
    assert msgspec.msgpack.decode(sent, type=Snapshot) == measured.taken()


@given(
    st.lists(
        st.tuples(st.sampled_from(["200", "429", "503"]), st.integers(0, 1000), st.booleans(), st.floats(0, 2)),
        min_size=1,
        max_size=6,
    )
)
def test_processes_add_up(processes: list[tuple[str, int, bool, float]]) -> None:
    """As if one process had measured everything, except that one local limiter makes the gateway's local."""
    together, apart = Measured(), []
    for code, count, is_local, seconds in processes:
        one = Measured()
        for measured in (one, together):
            measured.requests.labels(code).inc(count)
            measured.under_way.inc(count)
            measured.times.observe(seconds)
        one.is_local.set(is_local)
        apart.append(one.taken())
    together.is_local.set(any(is_local for _, _, is_local, _ in processes))
    assert sorted(lines(merge(apart, largest={"is_local"}))) == sorted(lines(together.taken()))


def test_totals_outlive_their_process_and_gauges_do_not() -> None:
    measured = Measured()
    measured.requests.labels("200").inc(3)
    measured.under_way.set(7)
    kept = {family.name for family in only_totals(measured.taken())}
    assert kept == {"requests", "times_seconds"}
