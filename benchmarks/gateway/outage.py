"""Valkey freezes, dies and comes back empty under load: no request may wait much longer because of it."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.gateway.load import Seen, Target, check_right
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import running, valkey_command, valkey_url
from benchmarks.gateway.stage import Stage
from benchmarks.platform import free_port

WAIT_MS = 100.0
"""The bound on what the longest request takes more than the longest one in peace."""
_SHARE = 0.4
"""Of the rate that the gateway can answer, so that requests do not wait for each other."""
_CONNECTIONS = 256
_PEACE_S = 10.0
_FROZEN_S, _THAWED_S, _KILLED_S, _RESTARTED_S, _END_S = 2.0, 4.0, 6.0, 8.0, 12.0


@dataclass
class _Valkey:
    """A Valkey without persistence that can be frozen, killed and started again on the same port."""

    command: list[str]
    cores: frozenset[int]
    servers: ExitStack
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        started = running(self.command, self.cores, output=subprocess.DEVNULL)
        self.process = self.servers.enter_context(started)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


def measure_outage(stage: Stage, report: Report) -> None:
    port = free_port()
    with ExitStack() as servers:
        valkey = _Valkey(valkey_command(stage.site.folder, port), stage.site.cores.servers, servers)
        valkey.start()
        own = replace(stage, site=replace(stage.site, redis_url=valkey_url(port)))
        with own.gateway("outage") as (_, dialects):
            for target in dialects.values():
                _measure(own, target, valkey, report)


def _measure(stage: Stage, target: Target, valkey: _Valkey, report: Report) -> None:
    closed = stage.load.closed(target, connections=64, seconds=3)
    check_right(target, closed)
    rate = _SHARE * closed.requests_per_s

    def run(seconds: float, watch: Callable[[], None] | None = None) -> Seen:
        return stage.load.open_loop(target, rate=rate, connections=_CONNECTIONS, seconds=seconds, watch=watch)

    peace = run(_PEACE_S)
    check_right(target, peace)
    seen = run(_END_S, _outages(valkey))
    waited = _longest_ms(seen) - _longest_ms(peace)
    details: dict[str, object] = {
        "rate": rate,
        "peace_ms": _longest_ms(peace),
        "p99_ms": seen.status["200"].p99_ms,
        "status": {status: times.count for status, times in seen.status.items()},
        "local_answers": seen.local,
    }
    name = f"outage.waited.{target.name}"
    report.add(Row(benchmark=name, unit="ms more", value=waited, gate=Gate("<=", WAIT_MS), details=details))
    wrong = f"outage.wrong_answers.{target.name}"
    report.add(Row(benchmark=wrong, unit="requests", value=seen.num_wrong, gate=Gate("<=", 0)))


def _outages(valkey: _Valkey) -> Callable[[], None]:
    began_at = time.monotonic()
    plan: list[tuple[float, Callable[[], None]]] = [
        (_FROZEN_S, lambda: valkey.send(signal.SIGSTOP)),
        (_THAWED_S, lambda: valkey.send(signal.SIGCONT)),
        (_KILLED_S, lambda: valkey.send(signal.SIGKILL)),
        (_RESTARTED_S, valkey.start),
    ]

    def watch() -> None:
        while plan and time.monotonic() - began_at >= plan[0][0]:
            plan.pop(0)[1]()

    return watch


def _longest_ms(seen: Seen) -> float:
    return seen.status["200"].max_ms or 0.0
