"""Measures the cost of the gateway, with all its features on, against a bare relay on the same stack.

python -m benchmarks.gateway [--only NAME] [--quick] [--dialect foreign|own|both] [--rounds N] [--over-tcp]
    [--profile FILE]

The upstream and the load generator are C programs on one core; the gateway and Valkey run on another, and speak over
a Unix socket, as under `tiergate up`. The database is SQLite. Limits, routing, outbox and metrics are on; the consumer
and ClickHouse are not started. The exit status is 1 if a gate is missed.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gateway.load import WrongAnswers
from benchmarks.gateway.machine import Others, assign_cores, describe
from benchmarks.gateway.outage import measure_outage
from benchmarks.gateway.overload import measure_overload
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Dialect, raise_file_limit
from benchmarks.gateway.stage import Stage, open_stage
from benchmarks.gateway.streams import measure_nine_thousand, measure_ten_thousand, measure_thousand
from benchmarks.gateway.throughput import (
    Contest,
    measure_chunks,
    measure_latency,
    measure_long_streams,
    measure_requests,
)
from benchmarks.platform import end_on_sigterm

DIALECTS: dict[str, Sequence[Dialect]] = {"foreign": ("foreign",), "own": ("own",), "both": ("foreign", "own")}


@dataclass(frozen=True)
class Lengths:
    """How long each kind of measurement runs, in seconds."""

    contest_s: float
    """Of one target in one round. Short, since targets are compared within a round, and the machine's speed drifts."""
    hold_s: float
    """How long streams are held after the ramp."""
    overload_s: float


NORMAL = Lengths(contest_s=2, hold_s=12, overload_s=60)
QUICK = Lengths(contest_s=2, hold_s=4, overload_s=8)


def main() -> int:
    arguments = _parse()
    end_on_sigterm()
    raise_file_limit()
    cores, report = assign_cores(), Report()
    if not cores.are_apart:
        print("there is only one core: gateway and load share it, so the figures say little", file=sys.stderr)
    dialects = DIALECTS[arguments.dialect]
    with open_stage(cores, dialects, profile=arguments.profile, over_tcp=arguments.over_tcp) as stage:
        print(f"{describe(stage.site.folder)}", file=sys.stderr)
        lengths = QUICK if arguments.quick else NORMAL
        names = arguments.only or list(ROWS)
        throughput = {name: measure for name, measure in THROUGHPUT.items() if name in names}
        if throughput:
            _measure_throughput(stage, throughput, report, seconds=lengths.contest_s, num_rounds=arguments.rounds)
        for name, measure in STREAMS.items():
            if name in names:
                _add_rows(name, partial(measure, stage, report, lengths.hold_s), report)
        if OVERLOAD in names:
            seconds = arguments.seconds or lengths.overload_s
            _add_rows(OVERLOAD, partial(measure_overload, stage, report, seconds), report)
        if OUTAGE in names:
            _add_rows(OUTAGE, partial(measure_outage, stage, report), report)
    report.print_table()
    return 0 if report.has_passed else 1


THROUGHPUT: dict[str, Callable[[Contest, Report], None]] = {
    "requests": measure_requests,
    "latency": measure_latency,
    "chunks": measure_chunks,
    "long-streams": measure_long_streams,
}
STREAMS: dict[str, Callable[[Stage, Report, float], None]] = {
    "streams-1000": measure_thousand,
    "streams-9000": measure_nine_thousand,
    "streams-10000": measure_ten_thousand,
}
OVERLOAD, OUTAGE = "overload", "outage"
ROWS = [*THROUGHPUT, *STREAMS, OVERLOAD, OUTAGE]


def _measure_throughput(
    stage: Stage,
    measures: Mapping[str, Callable[[Contest, Report], None]],
    report: Report,
    *,
    seconds: float,
    num_rounds: int,
) -> None:
    with stage.relay() as (relay_process, relay), stage.gateway("throughput") as (gateway, dialects):
        contest = Contest(stage.load, gateway, relay_process, relay, stage.direct, dialects, seconds, num_rounds)
        for name, measure in measures.items():
            _add_rows(name, partial(measure, contest, report), report)


def _add_rows(name: str, measure: Callable[[], None], report: Report) -> None:
    """Measure one row. Wrong answers miss its gate, and the other rows are measured all the same."""
    others = Others()
    try:
        measure()
    except WrongAnswers as error:
        missed = Gate(">=", 0)
        report.add(Row(benchmark=name, unit="", value=None, gate=missed, details={"reason": str(error)}))
    # If this is high, the row's other figures mean little.
    report.add(Row(benchmark=f"other_work_during.{name}", unit="cores", value=others.busy_cores()))


def _parse() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=ROWS, help="this row; may be given several times")
    parser.add_argument("--quick", action="store_true", help="short runs: for a look, not for a verdict")
    parser.add_argument("--dialect", choices=DIALECTS, default="both")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="of overload; default: 60")
    parser.add_argument("--over-tcp", action="store_true", help="reach Valkey over TCP, not over its Unix socket")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="run each gateway under cProfile, into FILE.NAME")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
