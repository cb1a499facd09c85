"""What one dashboard page shows, gathered from the usage queries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.dashboard.charts import Axis, Chart, Point, stack
from gateway.dashboard.names import Names
from gateway.dashboard.numbers import Format, full_count, money, short_count
from gateway.dashboard.ranges import Range, window_of
from gateway.metering.queries import Row, UsageQueries

NUM_RECENT = 25
_TABLE_LIMIT = 20


@dataclass(frozen=True)
class Metric:
    name: str
    label: str
    tick_format: Format
    value_format: Format
    least_top: float = 4


METRICS = {
    known.name: known
    for known in (
        Metric("requests", "Requests", short_count, full_count),
        Metric("tokens", "Tokens", short_count, full_count),
        Metric("cost_nanousd", "Cost", money, money, least_top=0),
    )
}
DEFAULT_METRIC = "requests"


@dataclass(frozen=True)
class Breakdown:
    """One chart with the table of the same groups over the whole range."""

    title: str
    column: str
    chart: Chart
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Page:
    totals: Row
    breakdowns: list[Breakdown]
    recent: Sequence[Row]


async def gather_page(
    queries: UsageQueries,
    chosen: Range,
    metric: Metric,
    *,
    tenant_id: str | None,
    names: Names,
    now: datetime,
) -> Page:
    """`tenant_id` None: all tenants, with a breakdown by tenant. Raises Unavailable."""
    axis = chosen.axis(now)
    window = window_of(axis)
    groups = [("By model", "model", "model_version")]
    groups += [("By tenant", "tenant", "tenant_id")] if tenant_id is None else [("By adapter", "adapter", "adapter_id")]
    totals, page, found = await asyncio.gather(
        queries.totals(window, tenant_id=tenant_id, may_lag=tenant_id is None),
        queries.usage(window, tenant_id=tenant_id, group_by="request", limit=NUM_RECENT),
        asyncio.gather(
            *(_groups(queries, axis, tenant_id=tenant_id, group_by=by, column=column) for _, by, column in groups)
        ),
    )
    known = {"tenant_id": names.tenants, "adapter_id": names.adapters}
    breakdowns = [
        _breakdown(title, column, series, rows, axis, metric, names=known.get(column, {}))
        for (title, _, column), (series, rows) in zip(groups, found, strict=True)
    ]
    return Page(totals, breakdowns, page.rows)


async def _groups(
    queries: UsageQueries, axis: Axis, *, tenant_id: str | None, group_by: str, column: str
) -> tuple[list[Row], Sequence[Row]]:
    window, may_lag = window_of(axis), tenant_id is None
    series, page = await asyncio.gather(
        queries.series(window, tenant_id=tenant_id, column=column, bucket_s=axis.bucket_s, may_lag=may_lag),
        queries.usage(window, tenant_id=tenant_id, group_by=group_by, limit=1000, may_lag=may_lag),
    )
    return series, page.rows


def _breakdown(
    title: str,
    column: str,
    series: Sequence[Row],
    rows: Sequence[Row],
    axis: Axis,
    metric: Metric,
    *,
    names: Mapping[str, str],
) -> Breakdown:
    points = [Point(row["bucket"], _label(row["name"], names), row[metric.name]) for row in series]
    chart = stack(
        points,
        axis,
        tick_format=metric.tick_format,
        value_format=metric.value_format,
        least_top=metric.least_top,
    )
    shown = [{**row, "label": _label(row[column], names), "key": row[column]} for row in rows]
    shown.sort(key=lambda row: -_measure(row, metric))
    return Breakdown(title, column, chart, shown[:_TABLE_LIMIT])


def _label(value: str | None, names: Mapping[str, str]) -> str:
    """A name; of a model its id, so that the chart shows its versions as one."""
    return names.get(value) or model_name(value) if value else "none"


def model_name(model_version: str) -> str:
    return model_version.partition("@")[0]


def _measure(row: Mapping[str, Any], metric: Metric) -> int:
    if metric.name == "tokens":
        return int(row["prompt_tokens"] + row["completion_tokens"])
    return int(row[metric.name])
