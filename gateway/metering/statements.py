"""The SQL over usage events: pure. Every value is bound on the server; the tenant's filter stands first.

`FINAL` makes a replayed event one row. It need not look across months: a copy has the same timestamp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.http.errors import InvalidRequest
from gateway.metering.cursors import decode_cursor
from gateway.metering.store import EVENT_FIELDS, TABLE
from gateway.metering.windows import Window

GROUP_COLUMNS: Mapping[str, str] = {
    "minute": "timestamp",
    "hour": "timestamp",
    "day": "timestamp",
    "tenant": "tenant_id",
    "user": "user_id",
    "tier": "tier",
    "model": "model_version",
    "adapter": "adapter_id",
    "key": "key_id",
    "pool": "pool",
}
GROUPINGS = ("request", *GROUP_COLUMNS)
"""What `group_by` may be."""
_SUMS = """count() AS requests, countIf(e.status IN ('error', 'lost')) AS errors,
sum(e.prompt_tokens) AS prompt_tokens, sum(e.cached_prompt_tokens) AS cached_prompt_tokens,
sum(e.completion_tokens) AS completion_tokens, sum(e.cost_nanousd) AS cost_nanousd,
sum(e.worker_compute_ms) AS worker_compute_ms, avgOrNull(e.ttft_ms) AS ttft_ms,
avgOrNull(e.total_latency_ms) AS total_latency_ms"""
_BUCKETS = {
    "minute": "toStartOfMinute(e.timestamp)",
    "hour": "toStartOfHour(e.timestamp)",
    "day": "toStartOfDay(e.timestamp)",
}


@dataclass(frozen=True)
class BoundQuery:
    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def check_grouping(group_by: str) -> str:
    if group_by not in GROUPINGS:
        raise InvalidRequest(f"group_by: {group_by[:40]!r} is not one of {', '.join(GROUPINGS)}", param="group_by")
    return group_by


def usage(window: Window, tenant_id: str | None, *, group_by: str, limit: int, after: str | None) -> BoundQuery:
    """Rows of one page and one more, which tells that there is a next page. `tenant_id` None: all tenants."""
    check_grouping(group_by)
    if group_by == "request":
        return _requests(window, tenant_id, limit=limit, after=after)
    return _groups(window, tenant_id, group_by=group_by, limit=limit, after=after)


def totals(
    window: Window, tenant_id: str | None, *, key_id: str | None = None, user_id: str | None = None
) -> BoundQuery:
    where, parameters = where_window(window, tenant_id)
    for column, value in (("key_id", key_id), ("user_id", user_id)):
        if value is not None:
            where += f" AND e.{column} = {{{column}:String}}"
            parameters[column] = value
    return BoundQuery(f"SELECT {_SUMS} FROM {TABLE} AS e FINAL WHERE {where}", parameters)


def series(window: Window, tenant_id: str | None, *, column: str, bucket_s: int) -> BoundQuery:
    """Sums by time bucket (Unix seconds) and by `column`, a value of GROUP_COLUMNS."""
    assert column in GROUP_COLUMNS.values()
    where, parameters = where_window(window, tenant_id)
    sql = f"""SELECT intDiv(toUnixTimestamp(e.timestamp), {{bucket_s:UInt32}}) * {{bucket_s:UInt32}} AS bucket,
toString(e.{column}) AS name, count() AS requests, sum(e.prompt_tokens + e.completion_tokens) AS tokens,
sum(e.cost_nanousd) AS cost_nanousd
FROM {TABLE} AS e FINAL WHERE {where} GROUP BY bucket, name ORDER BY bucket, name"""
    return BoundQuery(sql, parameters | {"bucket_s": bucket_s})


def _requests(window: Window, tenant_id: str | None, *, limit: int, after: str | None) -> BoundQuery:
    """Newest first."""
    where, parameters = where_window(window, tenant_id)
    if after is not None:
        timestamp_us, request_id = decode_cursor(after, int, str)
        where += " AND (toUnixTimestamp64Micro(e.timestamp), e.request_id) < ({after_us:Int64}, {after_id:String})"
        parameters |= {"after_us": timestamp_us, "after_id": request_id}
    columns = ", ".join(f"e.{name} AS {name}" for name in EVENT_FIELDS)
    sql = f"""SELECT {columns} FROM {TABLE} AS e FINAL WHERE {where}
ORDER BY e.timestamp DESC, e.request_id DESC LIMIT {{limit:UInt32}}"""
    return BoundQuery(sql, parameters | {"limit": limit + 1})


def _groups(window: Window, tenant_id: str | None, *, group_by: str, limit: int, after: str | None) -> BoundQuery:
    """In the order of the group's own value; the group without one (no user, no adapter) comes first."""
    where, parameters = where_window(window, tenant_id)
    having = ""
    if after is not None and group_by in _BUCKETS:
        [after_s] = decode_cursor(after, int)
        having, parameters = "HAVING toUnixTimestamp(g) > {after_s:Int64}", parameters | {"after_s": after_s}
    elif after is not None:
        [name] = decode_cursor(after, str)
        having, parameters = "HAVING ifNull(g, '') > {after:String}", parameters | {"after": name}
    # An empty user is no user: otherwise the two would share a place in the order, and a page could break between them.
    key = _BUCKETS.get(group_by, f"nullIf(e.{GROUP_COLUMNS[group_by]}, '')")
    order = "g" if group_by in _BUCKETS else "ifNull(g, '')"
    sql = f"""SELECT {key} AS g, {_SUMS} FROM {TABLE} AS e FINAL WHERE {where} GROUP BY g {having}
ORDER BY {order} LIMIT {{limit:UInt32}}"""
    return BoundQuery(sql, parameters | {"limit": limit + 1})


def where_window(window: Window, tenant_id: str | None) -> tuple[str, dict[str, Any]]:
    """The tenant first: it is the first column of the index, and the one that must never be forgotten."""
    parameters: dict[str, Any] = {"start_us": _micros(window.start), "end_us": _micros(window.end)}
    where = (
        "e.timestamp >= fromUnixTimestamp64Micro({start_us:Int64})"
        " AND e.timestamp < fromUnixTimestamp64Micro({end_us:Int64})"
    )
    if tenant_id is None:
        return where, parameters
    return f"e.tenant_id = {{tenant_id:String}} AND {where}", parameters | {"tenant_id": tenant_id}


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
