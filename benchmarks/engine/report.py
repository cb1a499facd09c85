"""Summarizes timed streams as figures and a table."""

import math
from dataclasses import dataclass

from benchmarks.engine.client import Stream
from benchmarks.engine.servers import Server

_PROMPT_BOUND = ("prefill", "cached")
"""Workloads whose throughput counts prompt tokens; that of the others counts output tokens."""
_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Measurement:
    """ttft_ms and tpot_ms: p50, p95, p99; tpot_ms is empty if answers have one token."""

    server: str
    workload: str
    tokens_per_s: float
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    start_s: float | None


def summarize(server: Server, workload: str, streams: list[Stream], wall_s: float) -> Measurement:
    is_prompt_bound = workload in _PROMPT_BOUND
    num_tokens = sum(stream.num_prompt if is_prompt_bound else stream.num_output for stream in streams)
    return Measurement(
        server=server.name,
        workload=workload,
        tokens_per_s=num_tokens / wall_s,
        ttft_ms=_quantiles([stream.ttft_ms for stream in streams]),
        tpot_ms=_quantiles([stream.tpot_ms for stream in streams if stream.tpot_ms is not None]),
        start_s=server.start_s,
    )


def print_table(measurements: list[Measurement]) -> None:
    last = {each.workload: each.tokens_per_s for each in measurements}
    titles = f"{'TTFT ms p50/95/99':>24} {'TPOT ms p50/95/99':>24}"
    print(f"{'workload':<9} {'server':<14} {'tokens/s':>9} {'ratio':>6} {titles}")
    for each in measurements:
        ratio = each.tokens_per_s / last[each.workload]
        times = f"{_join(each.ttft_ms):>24} {_join(each.tpot_ms):>24}"
        print(f"{each.workload:<9} {each.server:<14} {each.tokens_per_s:>9,.0f} {ratio:>6.2f} {times}")
    for name, start_s in {each.server: each.start_s for each in measurements}.items():
        if start_s is not None:
            print(f"{name}: {start_s:.1f} s from start to first completion")


def _quantiles(values: list[float]) -> tuple[float, ...]:
    """The quantiles by the nearest-rank method."""
    ordered = sorted(values)
    return tuple(ordered[math.ceil(q * len(ordered)) - 1] for q in _QUANTILES) if ordered else ()


def _join(values: tuple[float, ...]) -> str:
    return " / ".join(f"{value:.1f}" for value in values) or "-"
