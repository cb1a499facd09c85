"""Twice the load that the gateway can carry: refusals must be quick, Valkey must not be taken for away, and throughput
must be normal right afterwards. Throughput is compared with the bare relay's, before and after, since a host may become
slower within a minute."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gateway.load import Seen, Target, WrongAnswers, check_right
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Gateway
from benchmarks.gateway.stage import Stage

FACTOR = 2.0
QUICK_MS = 500.0
"""The bound on the p99 latency of refusals."""
SERVED_MS = 1000.0
"""The bound on the p99 latency of answers: a request admitted under overload must not have waited in a hidden queue."""
RECOVERY_S = 2.0
NORMAL, AT_ONCE = 0.8, 0.5
"""The share of the throughput before that all tries afterwards must reach together, and the first one alone: rates of a
second differ by a quarter without any load before."""
_CONCURRENCY = 64
_CONNECTIONS = 4000
_TRY_S = 1.0
_NUM_TRIES = 6
_METRIC = "tiergate_limiter_is_local"
_EXPECTED = frozenset({"200", "429", "503"})


@dataclass(frozen=True)
class Normal:
    """Requests/s at a load that the gateway can carry, each try followed by one of the bare relay."""

    rates: list[float]
    relay_rates: list[float]
    num_wrong: int
    """Answers of the gateway that were wrong."""

    def ratio(self, num_tries: int | None = None) -> float:
        """To the relay, in the first tries."""
        return sum(self.rates[:num_tries]) / sum(self.relay_rates[:num_tries])


def measure_overload(stage: Stage, report: Report, seconds: float) -> None:
    with stage.gateway("overload") as (gateway, dialects), stage.relay() as (_, relay):
        for target in dialects.values():
            _measure(stage, gateway, target, relay, report, seconds)


def _measure(stage: Stage, gateway: Gateway, target: Target, relay: Target, report: Report, seconds: float) -> None:
    before = _measure_normal(stage, target, relay)
    if before.num_wrong:
        raise WrongAnswers(f"{target.name} gave {before.num_wrong} wrong answers without overload")
    # The highest of the rates, since twice a rate that is too low would be no overload.
    rate = FACTOR * max(before.rates)
    is_local, watch = _metric_watcher(gateway)
    seen = stage.load.open_loop(target, rate=rate, connections=_CONNECTIONS, seconds=seconds, watch=watch)
    time.sleep(RECOVERY_S)
    after = _measure_normal(stage, target, relay)
    is_local.append(gateway.metric(_METRIC))
    _report(target.name, seen, is_local, rate, before, after, report)


def _measure_normal(stage: Stage, target: Target, relay: Target) -> Normal:
    tries, relay_tries = [], []
    for _ in range(_NUM_TRIES):
        tries.append(stage.load.closed(target, connections=_CONCURRENCY, seconds=_TRY_S))
        relay_tries.append(stage.load.closed(relay, connections=_CONCURRENCY, seconds=_TRY_S))
        check_right(relay, relay_tries[-1])
    rates, relay_rates = ([seen.requests_per_s for seen in each] for each in (tries, relay_tries))
    return Normal(rates, relay_rates, sum(seen.num_wrong for seen in tries))


def _metric_watcher(gateway: Gateway) -> tuple[list[float | None], Callable[[], None]]:
    """A list of the metric's values, and the function that adds one about once a second; None if /metrics does not
    answer."""
    said: list[float | None] = []
    next_at = time.monotonic()

    def watch() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            said.append(gateway.metric(_METRIC))
            next_at = time.monotonic() + 1

    return said, watch


def _report(
    dialect: str, seen: Seen, is_local: list[float | None], rate: float, before: Normal, after: Normal, report: Report
) -> None:
    def add(name: str, unit: str, value: float, gate: Gate, details: dict[str, object] | None = None) -> None:
        own_gate = gate if dialect == "foreign" else None
        benchmark = f"overload.{name}.{dialect}"
        report.add(Row(benchmark=benchmark, unit=unit, value=value, gate=own_gate, details=details or {}))

    num_other = sum(times.count for status, times in seen.status.items() if status not in _EXPECTED)
    answers: dict[str, object] = {
        "offered_per_s": rate,
        "status": {status: times.count for status, times in seen.status.items()},
        "failed": {"connect": seen.failed.connect, "closed": seen.failed.closed, "unanswered": seen.failed.unanswered},
        "no_retry_after": seen.no_retry_after,
        "p99_ms": {status: times.p99_ms for status, times in seen.status.items()},
    }
    add("wrong_answers", "requests", seen.failed.total + num_other + seen.no_retry_after, Gate("<=", 0), answers)
    # With all connections busy a request cannot even be sent, so the load is lower than intended.
    offered = seen.num_answers + seen.failed.total + seen.no_connection
    add("not_offered", "of all", seen.no_connection / max(1, offered), Gate("<=", 0.01))
    add("refusal_p99", "ms", _p99_ms(seen, "503"), Gate("<=", QUICK_MS))
    add("answer_p99", "ms", _p99_ms(seen, "200"), Gate("<=", SERVED_MS))
    add("local_answers", "requests", seen.local, Gate("<=", 0))
    told = [value for value in is_local if value is not None]
    silent: dict[str, object] = {"samples": len(told), "without_answer": len(is_local) - len(told)}
    add("limiter_is_local", "at most", max(told, default=1.0), Gate("<=", 0), silent)
    normal: dict[str, object] = {
        "before_per_s": before.rates,
        "after_per_s": after.rates,
        "relay_before_per_s": before.relay_rates,
        "relay_after_per_s": after.relay_rates,
    }
    is_right = after.num_wrong == 0
    add("normal_afterwards", "of before", after.ratio() / before.ratio() * is_right, Gate(">=", NORMAL), normal)
    add("normal_at_once", "of before", after.ratio(1) / before.ratio() * is_right, Gate(">=", AT_ONCE))


def _p99_ms(seen: Seen, status: str) -> float:
    """Zero if there is no answer with this status."""
    times = seen.status.get(status)
    return 0.0 if times is None or times.p99_ms is None else times.p99_ms
