"""The SQL that computes hours from events and days from hours, as pure functions.

A recomputation uses its own start time as its version, and reads only after that. So of two that overlap, the one with
the higher version has seen every row inserted before it began. A group that has lost its last event (a `lost` row that
the gateway's own event replaced later, with another model version) gets a row of zeros.
"""

DIMENSIONS = ("tenant_id", "key_id", "model_version", "pool", "tier", "adapter_id")
SUMS = (
    "requests",
    "errors",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "cost_nanousd",
    "worker_compute_ms",
    "ttft_ms_sum",
    "num_ttft",
    "total_latency_ms_sum",
)
QUANTILES = "quantilesDD(0.02, 0.5, 0.95, 0.99)"
"""Within 2 % of the true value, and independent of the order in which states are merged."""
LATENCIES = {
    "ttft_ms": "e.ttft_ms",
    "tpot_ms": "if(e.completion_tokens > 1 AND e.ttft_ms IS NOT NULL,"
    " (e.total_latency_ms - e.ttft_ms) / (e.completion_tokens - 1), NULL)",
    "total_latency_ms": "toNullable(e.total_latency_ms)",
}
"""Name -> expression over an event `e`. TPOT: milliseconds for each token after the first."""
EVENT_SUMS = """count() AS requests, countIf(e.status IN ('error', 'lost')) AS errors,
sum(e.prompt_tokens) AS prompt_tokens, sum(e.cached_prompt_tokens) AS cached_prompt_tokens,
sum(e.completion_tokens) AS completion_tokens, sum(e.cost_nanousd) AS cost_nanousd,
sum(e.worker_compute_ms) AS worker_compute_ms, sum(ifNull(e.ttft_ms, 0)) AS ttft_ms_sum,
count(e.ttft_ms) AS num_ttft, sum(e.total_latency_ms) AS total_latency_ms_sum"""
ROLLUP_SUMS = ", ".join(f"sum(e.{name}) AS {name}" for name in SUMS)


def event_states() -> str:
    return ", ".join(f"{_function('State')}({value}) AS {name}_state" for name, value in LATENCIES.items())


def merged_states() -> str:
    return ", ".join(f"{_function('MergeState')}(e.{name}_state) AS {name}_state" for name in LATENCIES)


def finished_quantiles() -> str:
    """Columns `ttft_ms_p50` and so on; null if nothing was measured."""
    merge = _function("Merge")
    return ", ".join(
        f"{_finite(f'{merge}(e.{name}_state)[{i}]')} AS {name}_{label}"
        for name in LATENCIES
        for i, label in enumerate(("p50", "p95", "p99"), start=1)
    )


_COLUMNS = ", ".join(("start", *DIMENSIONS, *SUMS, *(f"{name}_state" for name in LATENCIES), "version"))
_EVENT_DIMENSIONS = ", ".join(
    f"ifNull(e.{name}, '') AS {name}" if name == "adapter_id" else f"e.{name} AS {name}" for name in DIMENSIONS
)
_NAMES = ", ".join(("start", *DIMENSIONS))
_ZEROS = ", ".join(f"0 AS {name}" for name in SUMS)


def recompute_hours() -> str:
    """Parameter `hours`: the starts of the hours."""
    return f"""INSERT INTO usage_hours ({_COLUMNS})
SELECT {_NAMES}, {ROLLUP_SUMS}, {merged_states()}, toUInt64(toUnixTimestamp64Nano(now64(9))) AS version
FROM (
    SELECT toStartOfHour(e.timestamp) AS start, {_EVENT_DIMENSIONS}, {EVENT_SUMS}, {event_states()}
    FROM usage_events AS e FINAL
    WHERE toStartOfHour(e.timestamp) IN ({{hours:Array(DateTime('UTC'))}}) GROUP BY {_NAMES}
    UNION ALL
    SELECT {_NAMES}, {_ZEROS}, {_empty_states()}
    FROM usage_hours AS e WHERE e.start IN ({{hours:Array(DateTime('UTC'))}}) GROUP BY {_NAMES}
) AS e GROUP BY {_NAMES}"""


def recompute_day() -> str:
    """Sums up a day from its whole hours. Parameter `day`: its start.

    One day at a time, because the latency states of each group take memory."""
    dimensions = ", ".join(f"e.{name} AS {name}" for name in DIMENSIONS)
    return f"""INSERT INTO usage_days ({_COLUMNS})
SELECT toStartOfDay(e.start) AS day, {dimensions}, {ROLLUP_SUMS}, {merged_states()},
toUInt64(toUnixTimestamp64Nano(now64(9))) AS version
FROM usage_hours AS e FINAL
WHERE toStartOfDay(e.start) = {{day:DateTime('UTC')}} GROUP BY day, {", ".join(DIMENSIONS)}"""


def fresh_hours() -> str:
    """Hours with events inserted at or after `since_ms`: start, number of these rows, and the newest insertion time."""
    return """SELECT toStartOfHour(timestamp) AS hour, count() AS num_rows,
toUnixTimestamp64Milli(max(inserted_at)) AS newest_ms
FROM usage_events WHERE inserted_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') GROUP BY hour ORDER BY hour"""


def hours_between() -> str:
    """Hours from `start` until `end` that have events or rollup rows: start and number of rows."""
    return """SELECT hour, sum(num_rows) AS num_rows FROM (
    SELECT toStartOfHour(timestamp) AS hour, count() AS num_rows FROM usage_events
    WHERE timestamp >= {start:DateTime('UTC')} AND timestamp < {end:DateTime('UTC')} GROUP BY hour
    UNION ALL
    SELECT start AS hour, count() AS num_rows FROM usage_hours
    WHERE start >= {start:DateTime('UTC')} AND start < {end:DateTime('UTC')} GROUP BY hour
) GROUP BY hour ORDER BY hour"""


def _empty_states() -> str:
    nothing = "CAST(NULL AS Nullable(Float64))"
    return ", ".join(f"{_function('State')}({nothing}) AS {name}_state" for name in LATENCIES)


def _function(suffix: str) -> str:
    return QUANTILES.replace("DD", f"DD{suffix}", 1)


def _finite(value: str) -> str:
    return f"if(isNaN({value}), NULL, {value})"
