"""Measures how long queries of the console and the API take over many usage events, and the events' size on disk.

    python -m benchmarks.usage_queries --events 10000000 [--tenants 2000] [--folder FOLDER]

ClickHouse itself generates the events: 30 days, 200 tenants of very different sizes with two keys each, five model
versions, adapters and end users; 1 in 50 was sent twice. They are rolled up as by the consumer, and then queried as by
the console and the API. Gates: p95 < 150 ms for the overview's queries, < 400 ms for all others.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clickhouse_connect.driver.client import Client

from benchmarks.usage_events import DAYS, MAKING_DEADLINE_S, make_events, tenant_id_of
from gateway.dashboard.ranges import PRESETS
from gateway.dashboard.zones import UTC_ZONE
from gateway.metering.queries import UsageQueries
from gateway.metering.rollups.keeper import RollupKeeper
from gateway.metering.schema import connect_migrated
from gateway.metering.statements import RequestFilter
from gateway.metering.windows import Window
from tests.support.clickhouse import running_clickhouse

NOW = datetime(2026, 3, 31, 12, 30, tzinfo=UTC)
OVERVIEW_P95_MS, OTHER_P95_MS = 150.0, 400.0
TENANT = tenant_id_of(0)
"""The largest tenant."""


def questions(queries: UsageQueries, now: datetime) -> dict[str, tuple[str, Callable[[], Awaitable[object]]]]:
    """Name -> (the page that it belongs to, the query)."""
    month, week = Window(now - timedelta(days=DAYS), now), Window(now - timedelta(days=7), now)
    ranges = {name: PRESETS[name].until(now, zone=UTC_ZONE) for name in ("30d", "7d", "24h")}
    asked: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {}
    for whose, tenant_id in (("all", None), ("one", TENANT)):
        for name, chosen in ranges.items():
            where, window, bucket_s = f"{whose} {name}", chosen.window, chosen.axis.bucket_s
            before = chosen.window_before
            asked[f"{where} before"] = (
                "overview",
                lambda w=before, t=tenant_id: queries.totals(w, tenant_id=t, may_lag=t is None),
            )
            if tenant_id is not None:
                asked[f"{where} totals"] = (
                    "overview",
                    lambda w=window, t=tenant_id: queries.totals(w, tenant_id=t, has_percentiles=True),
                )
            for column, group_by in (("model_version", "model"), ("tenant_id", "tenant")):
                asked[f"{where} summary by {group_by}"] = (
                    "overview",
                    lambda w=window, t=tenant_id, c=column, b=bucket_s: queries.summary(
                        w, tenant_id=t, column=c, bucket_s=b, may_lag=t is None
                    ),
                )
                if tenant_id is None:
                    continue
                asked[f"{where} by {group_by}"] = (
                    "overview",
                    lambda w=window, t=tenant_id, g=group_by: queries.usage(
                        w, tenant_id=t, group_by=g, limit=1000, has_percentiles=True
                    ),
                )
            asked[f"{where} newest requests"] = (
                "overview",
                lambda w=window, t=tenant_id: queries.usage(w, tenant_id=t, group_by="request", limit=25),
            )
            for found, filters in (
                ("failed", RequestFilter(status="error")),
                ("slow", RequestFilter(min_latency_ms=10_000)),
                ("far too slow", RequestFilter(min_latency_ms=1_000_000)),
                ("one user's", RequestFilter(user_id="user-7")),
            ):
                asked[f"{where} {found} requests"] = (
                    "other",
                    lambda w=window, t=tenant_id, f=filters: queries.usage(
                        w, tenant_id=t, group_by="request", limit=50, asked=f
                    ),
                )
        for group_by in ("hour", "day", "key", "adapter", "tier"):
            asked[f"{whose} 30d by {group_by}"] = (
                "other",
                lambda t=tenant_id, g=group_by: queries.usage(month, tenant_id=t, group_by=g, limit=1000),
            )
    hour = Window(now - timedelta(hours=1), now)
    asked["one 1h by minute"] = "other", lambda: queries.usage(hour, tenant_id=TENANT, group_by="minute", limit=100)
    asked["one 7d by user"] = "other", lambda: queries.usage(week, tenant_id=TENANT, group_by="user", limit=100)
    return asked


async def ask(url: str, rounds: int, now: datetime) -> dict[str, dict[str, float]]:
    queries = UsageQueries(url, clock=lambda: now)
    worst: dict[str, dict[str, float]] = {"overview": {}, "other": {}}
    try:
        for name, (page, question) in questions(queries, now).items():
            times_ms = []
            for _ in range(rounds):
                began_s = time.perf_counter()
                await question()
                times_ms.append((time.perf_counter() - began_s) * 1000)
            worst[page][name] = round(sorted(times_ms)[int(0.95 * (rounds - 1))], 1)
            print(f"{page:9} {name:32} {worst[page][name]:8.1f} ms", file=sys.stderr)
    finally:
        await queries.close()
    return worst


def _newest(client: Client) -> datetime:
    """The full minute after the last event, so that kept events are queried as of their own day."""
    [(newest,)] = client.query("SELECT max(timestamp) FROM usage_events").result_rows
    return newest.replace(second=0, microsecond=0, tzinfo=UTC) + timedelta(minutes=1)  # type: ignore[no-any-return]


def bytes_of(client: Client, table: str) -> tuple[int, int]:
    query = """SELECT sum(bytes_on_disk), sum(rows) FROM system.parts
WHERE active AND table = {table:String} AND database = currentDatabase()"""
    return client.query(query, parameters={"table": table}).result_rows[0]


def measure(url: str, num_events: int, num_tenants: int, rounds: int) -> dict[str, object]:
    made_s = rolled_s = 0.0
    with connect_migrated(url, deadline_s=MAKING_DEADLINE_S) as client:
        if not client.query("SELECT count() FROM usage_events").result_rows[0][0]:
            began_s = time.perf_counter()
            make_events(client, num_events, num_tenants, until=NOW)
            made_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            with closing(RollupKeeper(url)) as keeper:
                keeper.sweep(now=NOW)
            rolled_s = time.perf_counter() - began_s
        worst = asyncio.run(ask(url, rounds, _newest(client)))
        sizes = {table: bytes_of(client, table) for table in ("usage_events", "usage_hours", "usage_days")}
    return {
        "events": num_events,
        "tenants": num_tenants,
        "made_s": round(made_s, 1),
        "rolled_up_s": round(rolled_s, 1),
        "overview_p95_ms": max(worst["overview"].values()),
        "other_p95_ms": max(worst["other"].values()),
        "mb_per_million_events": round(sizes["usage_events"][0] / num_events, 1),
        "rows": {table: rows for table, (_, rows) in sizes.items()},
        "mb": {table: round(size / 1e6, 1) for table, (size, _) in sizes.items()},
        "yardstick": {"overview_p95_ms": OVERVIEW_P95_MS, "other_p95_ms": OTHER_P95_MS},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="keeps the events there, and asks those that are there")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="usage-queries-")))
        clickhouse = stack.enter_context(running_clickhouse(folder))
        found = measure(f"{clickhouse.url}/usage", options.events, options.tenants, options.rounds)
    print(json.dumps(found))
    is_good = found["overview_p95_ms"] < OVERVIEW_P95_MS and found["other_p95_ms"] < OTHER_P95_MS  # type: ignore[operator]
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
