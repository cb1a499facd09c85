"""Thousands of concurrent streams: how fast they open, whether all complete, and how much latency the gateway adds to a
chunk."""

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from benchmarks.gateway.load import Seen, Target
from benchmarks.gateway.machine import rss_bytes
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Dialect, takes_processes
from benchmarks.gateway.stage import Stage

_WARM_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """`count` streams, started evenly over `ramp_s`, with a chunk every `pause_ms`; and the bounds that must hold."""

    count: int
    pause_ms: int
    ramp_s: float
    max_opened_s: float
    max_transit_ms: float
    may_be_as_slow_as_relay: bool = False
    max_ttft_ms: float | None = None
    max_kb_a_stream: float | None = None


@dataclass(frozen=True)
class _Figures:
    seen: Seen
    peak_growth_bytes: int


THOUSAND = Crowd(count=1000, pause_ms=100, ramp_s=1, max_opened_s=1.5, max_transit_ms=10, max_ttft_ms=100)
NINE_THOUSAND = Crowd(
    count=9000,
    pause_ms=500,
    ramp_s=5,
    max_opened_s=6,
    max_transit_ms=100,
    may_be_as_slow_as_relay=True,
    max_kb_a_stream=40,
)
TEN_THOUSAND, NUM_PROCESSES = 10_000, 2


def measure_thousand(stage: Stage, report: Report, hold_s: float) -> None:
    _measure(stage, THOUSAND, report, hold_s)


def measure_nine_thousand(stage: Stage, report: Report, hold_s: float) -> None:
    _measure(stage, NINE_THOUSAND, report, hold_s)


def measure_ten_thousand(stage: Stage, report: Report, hold_s: float) -> None:
    """Over two processes on all cores, because one process may not be allowed enough file descriptors."""
    name, gate = f"streams_{TEN_THOUSAND}_over_{NUM_PROCESSES}.failed.foreign", Gate("<=", 0)
    if not takes_processes():
        reason: dict[str, object] = {"reason": "this gateway has no --processes"}
        report.add(Row(benchmark=name, unit="streams", value=None, gate=gate, details=reason))
        return
    cores = stage.site.cores.every
    with stage.gateway("processes", num_processes=NUM_PROCESSES, cores=cores) as (gateway, dialects):
        target = dialects.get("foreign") or next(iter(dialects.values()))
        stage.load.closed(target, connections=64, seconds=_WARM_S)
        crowd = Crowd(count=TEN_THOUSAND, pause_ms=500, ramp_s=6, max_opened_s=0, max_transit_ms=0)
        figures = _watched(stage, target, crowd, hold_s, gateway.processes())
    report.add(_failed_row(name, figures.seen, gate))


def _measure(stage: Stage, crowd: Crowd, report: Report, hold_s: float) -> None:
    direct = _watched(stage, stage.direct, crowd, hold_s, []).seen
    with stage.relay() as (process, target):
        relay = _watched(stage, target, crowd, hold_s, process.processes())
    for dialect in stage.dialects:
        # A fresh gateway, since memory left behind by an earlier crowd would hide what this one takes.
        with stage.gateway(f"streams-{crowd.count}-{dialect}") as (gateway, dialects):
            stage.load.closed(dialects[dialect], connections=64, seconds=_WARM_S)
            figures = _watched(stage, dialects[dialect], crowd, hold_s, gateway.processes())
        _report(crowd, dialect, figures, relay, direct, report)


def _watched(stage: Stage, target: Target, crowd: Crowd, hold_s: float, processes: list[psutil.Process]) -> _Figures:
    before = peak = rss_bytes(processes)

    def watch() -> None:
        nonlocal peak
        peak = max(peak, rss_bytes(processes))

    seen = stage.load.streams(
        target, count=crowd.count, ramp_s=crowd.ramp_s, pause_ms=crowd.pause_ms, hold_s=hold_s, watch=watch
    )
    return _Figures(seen, peak - before)


def _report(crowd: Crowd, dialect: Dialect, ours: _Figures, relay: _Figures, direct: Seen, report: Report) -> None:
    def gate(bound: float | None) -> Gate | None:
        return None if bound is None or dialect != "foreign" else Gate("<=", bound)

    def add(name: str, unit: str, value: float | None, yardstick: float | None, bound: float | None) -> None:
        ratio = value / yardstick if value is not None and yardstick else None
        benchmark = f"streams_{crowd.count}.{name}.{dialect}"
        report.add(Row(benchmark=benchmark, unit=unit, value=value, yardstick=yardstick, ratio=ratio, gate=gate(bound)))

    report.add(_failed_row(f"streams_{crowd.count}.failed.{dialect}", ours.seen, gate(0)))
    add("opened", "s", ours.seen.opened_s, relay.seen.opened_s, crowd.max_opened_s)
    relay_transit = _added(relay.seen, direct, _transit)
    bound = crowd.max_transit_ms
    if crowd.may_be_as_slow_as_relay and relay_transit is not None:
        bound = max(bound, relay_transit)
    add("added_transit_p99", "ms", _added(ours.seen, direct, _transit), relay_transit, bound)
    add("added_ttft_p99", "ms", _added(ours.seen, direct, _ttft), _added(relay.seen, direct, _ttft), crowd.max_ttft_ms)
    add("memory_a_stream", "KB", _kb_each(crowd, ours), _kb_each(crowd, relay), crowd.max_kb_a_stream)


def _failed_row(benchmark: str, seen: Seen, gate: Gate | None) -> Row:
    details: dict[str, object] = {
        "opened_s": seen.opened_s,
        "status": {status: times.count for status, times in seen.status.items()},
        "chunks": seen.chunks,
        "transit_p99_ms": {
            "ramp": seen.transit.ramp.p99_ms,
            "steady": seen.transit.steady.p99_ms,
            "after": seen.transit.after.p99_ms,
        },
        "transit_max_ms": seen.transit.after.max_ms,
        "ttft_ms": {"p50": seen.ttft.p50_ms, "p99": seen.ttft.p99_ms},
    }
    return Row(benchmark=benchmark, unit="streams", value=seen.num_wrong, gate=gate, details=details)


def _added(seen: Seen, direct: Seen, figure: Callable[[Seen], float | None]) -> float | None:
    ours, theirs = figure(seen), figure(direct)
    return None if ours is None or theirs is None else ours - theirs


def _transit(seen: Seen) -> float | None:
    """None if the last stream opened after the first had ended, so that there was no time with all of them open."""
    return seen.transit.after.p99_ms if seen.transit.steady.count else None


def _ttft(seen: Seen) -> float | None:
    return seen.ttft.p99_ms


def _kb_each(crowd: Crowd, figures: _Figures) -> float:
    return figures.peak_growth_bytes / 1024 / crowd.count
