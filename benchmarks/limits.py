"""Checks that limits hold when a thousand clients send requests to eight gateway processes at once.

python -m benchmarks.limits [--bursts N] [--clients N] [--gateways N] [--separate] [--database-url URL]

Each burst has a new tenant, with 100 requests and 10,000 tokens per minute and a budget of $1 per month, and one
request from every client at the same moment. Each of the three limits binds in turn. In the second half of the bursts
all gateways share one core, while a busy loop and the clients have another. Exits 1 if a burst exceeds a limit although
no gateway decided locally; the number of bursts with local decisions is reported.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import psutil

from benchmarks.gateway.admin import Admin
from benchmarks.gateway.load import Load, Seen, Target
from benchmarks.gateway.machine import Cores, assign_cores, describe, move
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.gateway.servers import Dialect, Gateway, model_of, raise_file_limit, takes_processes
from benchmarks.gateway.stage import Stage, open_stage
from benchmarks.platform import end_on_sigterm

DOLLAR_NANOUSD = 10**9
REQUESTS, TOKENS, BUDGET_NANOUSD = 100, 10_000, DOLLAR_NANOUSD
_PROMPT_TOKENS = 20
"""The prompt tokens that native/upstream.c reports for every request."""
_DEAR_NANOUSD = 1_000_000
"""The price of a completion token of the model that speaks our own dialect: 20 tokens cost two cents."""


@dataclass(frozen=True)
class Shape:
    """A kind of request, with an answer length for which one limit is reached well before the others."""

    binds: str
    dialect: Dialect
    completion_tokens: int

    @property
    def tokens(self) -> int:
        return _PROMPT_TOKENS + self.completion_tokens

    @property
    def cost_nanousd(self) -> int:
        return self.completion_tokens * _DEAR_NANOUSD if self.dialect == "own" else 0

    @property
    def max_passed(self) -> int:
        """How many requests are within all three limits."""
        by_budget = BUDGET_NANOUSD // self.cost_nanousd if self.cost_nanousd else REQUESTS
        return min(REQUESTS, TOKENS // self.tokens, by_budget)


SHAPES = (Shape("requests", "foreign", 16), Shape("tokens", "foreign", 180), Shape("budget", "own", 20))


@dataclass(frozen=True)
class Burst:
    shape: Shape
    is_core_taken: bool
    num_passed: int
    num_local: int
    seen: Seen

    @property
    def num_over(self) -> int:
        return max(0, self.num_passed - self.shape.max_passed)

    def row(self, number: int) -> Row:
        return Row(
            benchmark=f"burst_{number}.{self.shape.binds}",
            unit="requests",
            value=self.num_passed,
            details={
                "limit": self.shape.max_passed,
                "tokens": self.num_passed * self.shape.tokens,
                "cost_nanousd": self.num_passed * self.shape.cost_nanousd,
                "local_answers": self.num_local,
                "core_taken": self.is_core_taken,
                "status": {status: times.count for status, times in self.seen.status.items()},
                "broken": self.seen.failed.total,
                "seconds": self.seen.seconds,
            },
        )


def main() -> int:
    arguments = _parse()
    end_on_sigterm()
    raise_file_limit()
    # All processes may use all cores, since a busy machine is tested here.
    every, report = assign_cores().every, Report()
    cores = Cores(every, every, every)
    with open_stage(cores, ("foreign", "own"), database_url=arguments.database_url) as stage:
        print(f"{describe(stage.site.folder)}", file=sys.stderr)
        keys = _prepare(stage, arguments.bursts)
        is_one_command = takes_processes() and not arguments.separate
        with _running_gateways(stage, arguments.gateways, is_one_command=is_one_command) as gateways:
            ports = tuple(gateway.port for gateway in gateways)
            bursts = list(_run_bursts(stage, ports, keys, arguments.clients, report))
    _conclude(bursts, report)
    report.print_table()
    return 0 if report.has_passed else 1


def _prepare(stage: Stage, num_bursts: int) -> list[str]:
    """Create a tenant with a key for each burst, through a gateway that then stops: the others read them from the
    database.
    """
    with stage.site.running_gateway("setup") as gateway:
        admin = Admin(gateway.origin)
        limits = {"requests_per_minute": REQUESTS, "tokens_per_minute": TOKENS, "concurrency": None}
        limits |= {"tokens_per_day": None, "budget_nanousd_per_month": BUDGET_NANOUSD}
        admin.set_limits("enterprise", limits)
        admin.set_price(model_of("own"), prompt_nanousd=0, completion_nanousd=_DEAR_NANOUSD)
        return [admin.make_key(f"tenant-{number}", tier="enterprise") for number in range(num_bursts)]


@contextmanager
def _running_gateways(stage: Stage, count: int, *, is_one_command: bool) -> Iterator[list[Gateway]]:
    with ExitStack() as running:
        if is_one_command:
            yield [running.enter_context(stage.site.running_gateway("gateway", num_processes=count))]
        else:
            names = [f"gateway-{number}" for number in range(count)]
            yield [running.enter_context(stage.site.running_gateway(name)) for name in names]


def _run_bursts(
    stage: Stage, ports: Sequence[int], keys: Sequence[str], num_clients: int, report: Report
) -> Iterator[Burst]:
    half = (len(keys) + 1) // 2
    for number, key in enumerate(keys[:half]):
        yield _burst(number, stage.load, ports, key, num_clients, report, is_core_taken=False)
    with _core_taken(stage.site.cores.every) as (left, taken):
        # The clients stand for other machines: on the gateways' core they would send only as fast as those answer.
        load = Load(Cores(left, taken, stage.site.cores.every))
        for number, key in enumerate(keys[half:], start=half):
            yield _burst(number, load, ports, key, num_clients, report, is_core_taken=True)


def _burst(
    number: int,
    load: Load,
    ports: Sequence[int],
    key: str,
    num_clients: int,
    report: Report,
    *,
    is_core_taken: bool,
) -> Burst:
    shape = SHAPES[number % len(SHAPES)]
    target = Target(shape.binds, tuple(ports), model_of(shape.dialect), key, max_tokens=shape.completion_tokens)
    seen = load.burst(target, connections=num_clients, chunks_each=shape.completion_tokens)
    # A stream that broke off was admitted nevertheless.
    burst = Burst(shape, is_core_taken, seen.num_ok + seen.failed.broken, seen.local, seen)
    report.add(burst.row(number))
    return burst


@contextmanager
def _core_taken(every: frozenset[int]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """Runs a busy loop on one core, with all child processes on the others. Yields those cores, and the busy one."""
    *left, taken = sorted(every)
    if not left:
        raise SystemExit("there is only one core: none can be taken away")
    ours = frozenset(left)
    move(psutil.Process().children(recursive=True), ours)
    busy = get_context("spawn").Process(target=_spin, args=(taken,), daemon=True)
    busy.start()
    try:
        yield ours, frozenset({taken})
    finally:
        busy.terminate()
        busy.join()


def _spin(core: int) -> None:
    move([psutil.Process()], frozenset({core}))
    while True:
        pass


def _conclude(bursts: Sequence[Burst], report: Report) -> None:
    """Local decisions have no gate: the bound of docs/limits.md applies to them instead of the limit itself."""
    in_redis = [burst for burst in bursts if burst.num_local == 0]
    went_local: dict[str, object] = {"of": len(bursts)}
    report.add(Row(benchmark="limits.went_local", unit="bursts", value=len(bursts) - len(in_redis), details=went_local))
    most_over = max((burst.num_over for burst in in_redis), default=0)
    report.add(Row(benchmark="limits.most_over", unit="requests", value=most_over, gate=Gate("<=", 0)))
    # A gateway that refuses everything would keep every limit.
    least = min((burst.num_passed for burst in bursts), default=0)
    report.add(Row(benchmark="limits.least_passed", unit="requests", value=least, gate=Gate(">=", 1)))
    most_local = max((burst.num_over for burst in bursts if burst.num_local), default=0)
    report.add(Row(benchmark="limits.most_over_where_local", unit="requests", value=most_local))


def _parse() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--separate", action="store_true", help="eight commands even where one has --processes")
    parser.add_argument("--database-url", default="", help="of an empty PostgreSQL database instead of SQLite")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
