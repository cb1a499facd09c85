"""Requests per second, added latency and chunks per second, each compared with the bare relay in the same minutes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.gateway.load import Load, Target, check_right
from benchmarks.gateway.machine import cpu_s
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Dialect, Gateway

CONCURRENCY = 64
CHUNKS_EACH = 50
"""The length of a stream: a short answer, so that opening and closing it matter, too."""
LONG_CHUNKS_EACH = 500
_WARM_S = 1.0


@dataclass(frozen=True)
class Contest:
    """The targets measured in turn: the gateway with each dialect, the bare relay, and the upstream itself."""

    load: Load
    gateway: Gateway
    relay_process: Gateway
    relay: Target
    direct: Target
    dialects: Mapping[Dialect, Target]
    seconds: float
    num_rounds: int

    @property
    def targets(self) -> list[Target]:
        return [self.relay, *self.dialects.values()]

    def rounds(self, targets: Sequence[Target], measure: Callable[[Target], float]) -> dict[str, list[float]]:
        """Measure the targets alternately (A B A B), so that a machine that gets slower or faster affects them all."""
        figures: dict[str, list[float]] = {target.name: [] for target in targets}
        for _ in range(self.num_rounds):
            for target in targets:
                figures[target.name].append(measure(target))
        return figures

    def processes_of(self, target: Target) -> list[psutil.Process]:
        return (self.relay_process if target is self.relay else self.gateway).processes()

    def warm_up(self) -> None:
        for target in self.targets:
            check_right(target, self.load.closed(target, connections=CONCURRENCY, seconds=_WARM_S))


def measure_requests(contest: Contest, report: Report) -> None:
    costs: dict[str, list[float]] = {target.name: [] for target in contest.targets}

    def measure(target: Target) -> float:
        processes = contest.processes_of(target)
        before_s = cpu_s(processes)
        seen = contest.load.closed(target, connections=CONCURRENCY, seconds=contest.seconds)
        check_right(target, seen)
        costs[target.name].append((cpu_s(processes) - before_s) / seen.num_ok * 1000)
        return seen.requests_per_s

    contest.warm_up()
    figures = contest.rounds(contest.targets, measure)
    relay_cost = round(statistics.median(costs[contest.relay.name]), 4)
    for dialect, target in contest.dialects.items():
        cost = round(statistics.median(costs[target.name]), 4)
        costs_ms: dict[str, object] = {"cpu_ms_a_request": cost, "relay_cpu_ms_a_request": relay_cost}
        # Other work on the machine affects this ratio less than the ratio of the rates.
        costs_ms["ratio_by_cpu"] = round(relay_cost / cost, 4)
        gate, aim = (Gate(">=", 0.5, "ratio"), "0.7x") if dialect == "foreign" else (None, "0.4x")
        report.add(_compared(f"requests_per_s.{dialect}", "requests/s", figures, contest, target, gate, aim, costs_ms))


def measure_chunks(contest: Contest, report: Report) -> None:
    _measure_flood(contest, report, "chunks_per_s", chunks_each=CHUNKS_EACH, gate=Gate(">=", 0.6, "ratio"))


def measure_long_streams(contest: Contest, report: Report) -> None:
    """Streams with hardly any opening and closing; in between, as many chunks are under way as the sockets hold."""
    _measure_flood(contest, report, "chunks_per_s_long", chunks_each=LONG_CHUNKS_EACH, gate=None)


def _measure_flood(contest: Contest, report: Report, name: str, *, chunks_each: int, gate: Gate | None) -> None:
    costs: dict[str, list[float]] = {target.name: [] for target in [contest.direct, *contest.targets]}

    def measure(target: Target) -> float:
        processes = contest.processes_of(target)
        before_s = cpu_s(processes)
        seen = contest.load.flood(target, connections=CONCURRENCY, seconds=contest.seconds, chunks_each=chunks_each)
        check_right(target, seen)
        costs[target.name].append((cpu_s(processes) - before_s) / seen.chunks * 1e6)
        return seen.chunks_per_s

    contest.warm_up()
    figures = contest.rounds(contest.targets, measure)
    direct, relay_cost = measure(contest.direct), statistics.median(costs[contest.relay.name])
    for dialect, target in contest.dialects.items():
        details: dict[str, object] = {"chunks_each": chunks_each, "direct": round(direct)}
        cost = statistics.median(costs[target.name])
        details |= {"cpu_us_a_chunk": round(cost, 2), "relay_cpu_us_a_chunk": round(relay_cost, 2)}
        details["ratio_by_cpu"] = round(relay_cost / cost, 4)
        own_gate = gate if dialect == "foreign" else None
        report.add(_compared(f"{name}.{dialect}", "chunks/s", figures, contest, target, own_gate, "0.9x", details))


def measure_latency(contest: Contest, report: Report) -> None:
    def measure(target: Target) -> float:
        seen = contest.load.closed(target, connections=1, seconds=contest.seconds / 2)
        check_right(target, seen)
        return seen.p50_ms

    contest.warm_up()
    figures = contest.rounds([contest.direct, *contest.targets], measure)
    direct = statistics.median(figures[contest.direct.name])
    relay_ms = statistics.median(figures[contest.relay.name]) - direct
    for dialect, target in contest.dialects.items():
        added_ms = statistics.median(figures[target.name]) - direct
        report.add(
            Row(
                benchmark=f"added_latency_p50.{dialect}",
                unit="ms",
                value=added_ms,
                yardstick=relay_ms,
                ratio=added_ms / relay_ms,
                gate=Gate("<=", 0.9) if dialect == "foreign" else None,
                details={"direct_p50_ms": round(direct, 4)},
            )
        )


def _compared(
    benchmark: str,
    unit: str,
    figures: Mapping[str, list[float]],
    contest: Contest,
    target: Target,
    gate: Gate | None,
    aim: str,
    details: dict[str, object],
) -> Row:
    """A row of medians. The ratio is the median over rounds of the ratio of two measurements close in time."""
    ours, relays = figures[target.name], figures[contest.relay.name]
    return Row(
        benchmark=benchmark,
        unit=unit,
        value=statistics.median(ours),
        yardstick=statistics.median(relays),
        ratio=statistics.median(mine / relay for mine, relay in zip(ours, relays, strict=True)),
        gate=gate,
        aim=aim,
        details=details
        | {"rounds": [round(figure, 1) for figure in ours], "relay_rounds": [round(f, 1) for f in relays]},
    )
