"""The overview: usage in a time range, against the period before, over time, and grouped by one dimension."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.charts import Chart, Point, stack
from gateway.dashboard.links import query_of
from gateway.dashboard.names import Names
from gateway.dashboard.numbers import Format, full_count, money, short_count
from gateway.dashboard.pages import Page
from gateway.dashboard.ranges import PRESETS, Range, range_of
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.metering.queries import Row, Summary, UsageQueries
from gateway.services import Services

NUM_RECENT = 10
_TABLE_LIMIT = 20
_KNOWN = ("range", "from", "to", "metric", "by", "tenant")


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
class Grouping:
    name: str
    column: str


GROUPINGS = {
    known.name: known
    for known in (
        Grouping("model", "model_version"),
        Grouping("tenant", "tenant_id"),
        Grouping("adapter", "adapter_id"),
        Grouping("tier", "tier"),
        Grouping("pool", "pool"),
    )
}


@dataclass(frozen=True)
class Overview:
    totals: Row
    before: Row
    """Totals of the period before, which is as long."""
    refused: Sequence[Row]
    chart: Chart
    rows: Sequence[Mapping[str, Any]]
    recent: Sequence[Row]
    as_of: datetime


async def show_overview(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises Unavailable, and InvalidRequest for an invalid range."""
    query, now = query_of("/dashboard", visitor.asked(request), _KNOWN), utc_now()
    chosen = range_of(query["range"], query["from"], query["to"], zone=visitor.zone, now=now)
    metric = METRICS.get(query["metric"], METRICS[DEFAULT_METRIC])
    tenant_id = visitor.shown_tenant(query["tenant"])
    groupings = [each for each in GROUPINGS.values() if tenant_id is None or each.name not in ("tenant", "tier")]
    grouping = next((each for each in groupings if each.name == query["by"]), groupings[0])
    shown = await _gather(services.usage, chosen, metric, grouping, tenant_id=tenant_id, names=visitor.names, now=now)
    return render(
        "overview.html",
        visitor=visitor,
        query=query,
        chosen=chosen,
        presets=PRESETS.values(),
        metric=metric,
        metrics=METRICS.values(),
        grouping=grouping,
        groupings=groupings,
        tenant_id=tenant_id,
        shown=shown,
    )


async def _gather(
    queries: UsageQueries,
    chosen: Range,
    metric: Metric,
    grouping: Grouping,
    *,
    tenant_id: str | None,
    names: Names,
    now: datetime,
) -> Overview:
    sums, before, refused, recent = await asyncio.gather(
        _sums(queries, chosen, grouping, tenant_id=tenant_id),
        queries.totals(chosen.window_before, tenant_id=tenant_id, may_lag=tenant_id is None),
        queries.refusals_by_limit(chosen.window, tenant_id=tenant_id),
        queries.usage(chosen.window, tenant_id=tenant_id, group_by="request", limit=NUM_RECENT),
    )
    known = {"tenant_id": names.tenants, "adapter_id": names.adapters}.get(grouping.column, {})
    points = [Point(row["bucket"], _label(row["name"], known), row[metric.name]) for row in sums.series]
    chart = stack(
        points,
        chosen.axis,
        tick_format=metric.tick_format,
        value_format=metric.value_format,
        least_top=metric.least_top,
    )
    rows = [
        {**row, "label": _label(row[grouping.column], known), "key": row[grouping.column] or ""} for row in sums.groups
    ]
    rows.sort(key=lambda row: -_measure(row, metric))
    return Overview(sums.totals, before, refused, chart, rows[:_TABLE_LIMIT], recent.rows, now)


async def _sums(queries: UsageQueries, chosen: Range, grouping: Grouping, *, tenant_id: str | None) -> Summary:
    """For one tenant with percentiles. For all tenants without, since merging their states takes seconds."""
    window, axis, column = chosen.window, chosen.axis, grouping.column
    edges = None if axis.is_even else axis.buckets
    summary = queries.summary(
        window, tenant_id=tenant_id, column=column, bucket_s=axis.bucket_s, edges=edges, may_lag=tenant_id is None
    )
    if tenant_id is None:
        return await summary
    sums, totals, page = await asyncio.gather(
        summary,
        queries.totals(window, tenant_id=tenant_id, has_percentiles=True),
        queries.usage(window, tenant_id=tenant_id, group_by=grouping.name, limit=1000, has_percentiles=True),
    )
    return Summary(totals, page.rows, sums.series)


def _label(value: str | None, names: Mapping[str, str]) -> str:
    """The name of `value`. A model version gets its model's id, so that the chart shows all versions as one."""
    return names.get(value) or model_name(value) if value else "none"


def model_name(model_version: str) -> str:
    return model_version.partition("@")[0]


def _measure(row: Mapping[str, Any], metric: Metric) -> int:
    if metric.name == "tokens":
        return int(row["prompt_tokens"] + row["completion_tokens"])
    return int(row[metric.name])


PAGES = (Page("", show_overview, label="Overview"),)
