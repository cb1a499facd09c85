"""The SQL over usage, as pure functions. Every value is a server-side parameter; the tenant filter comes first.

Each piece of the time range (rollups/pieces.py) is queried from its table, and the results are added up. `FINAL` merges
the copies of a replayed event, and the versions of a rollup row, into one row. `FINAL` need not look across months or
outside the range, because all copies share tenant and timestamp. For the same reason only these two may be filtered
before the merge (`PREWHERE`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.http.errors import InvalidRequest
from gateway.metering.cursors import decode_cursor
from gateway.metering.rollups.pieces import Grain, Piece
from gateway.metering.rollups.recompute import (
    EVENT_SUMS,
    ROLLUP_SUMS,
    event_states,
    finished_quantiles,
    merged_states,
)
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
"""The allowed values of `group_by`."""
_BUCKETS = {
    "minute": "toStartOfMinute({time})",
    "hour": "toStartOfHour({time})",
    "day": "toStartOfDay({time})",
}
_HOUR_S, _DAY_S = 3600, 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class BoundQuery:
    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def check_grouping(group_by: str) -> str:
    if group_by not in GROUPINGS:
        raise InvalidRequest(f"group_by: {group_by[:40]!r} is not one of {', '.join(GROUPINGS)}", param="group_by")
    return group_by


def grain_of(group_by: str) -> Grain:
    """The coarsest rollup that can answer. End users and minutes are in no rollup."""
    if group_by in ("request", "minute", "user"):
        return "event"
    return "hour" if group_by == "hour" else "day"


def grain_of_buckets(bucket_s: int) -> Grain:
    return "event" if bucket_s % _HOUR_S else "hour" if bucket_s % _DAY_S else "day"


@dataclass(frozen=True)
class RequestFilter:
    """A filter over events; fields that are None do not filter. model: an id, or an id with its files' version."""

    status: str | None = None
    error_code: str | None = None
    route_reason: str | None = None
    model: str | None = None
    adapter_id: str | None = None
    tier: str | None = None
    key_id: str | None = None
    user_id: str | None = None
    min_latency_ms: int | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """Conditions for WHERE, not PREWHERE: copies of an event may differ in all of these fields."""
        given = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        tests = []
        for name in given:
            if name == "model":
                tests.append("(e.model_version = {model:String} OR startsWith(e.model_version, {model:String} || '@'))")
            elif name == "min_latency_ms":
                tests.append("e.total_latency_ms >= {min_latency_ms:UInt32}")
            else:
                tests.append(f"e.{name} = {{{name}:String}}")
        return (" WHERE " + " AND ".join(tests) if tests else ""), given


ALL_REQUESTS = RequestFilter()


def requests(
    window: Window,
    tenant_id: str | None,
    *,
    limit: int,
    after: str | None,
    asked: RequestFilter = ALL_REQUESTS,
    among: Sequence[Row] | None = None,
) -> BoundQuery:
    """One page, newest first, plus one row that shows whether there is a next page. `tenant_id` None: all tenants.
    among: the rows of `candidates`, to which the search is restricted."""
    where, parameters = _page(window, tenant_id, after)
    filters, bound = asked.where()
    parameters |= bound
    if among is not None:
        # All copies of an event share its tenant and timestamp, so PREWHERE may filter by them (see the module).
        where += """ AND e.tenant_id IN {tenants:Array(String)}
AND toStartOfHour(e.timestamp) IN {hours:Array(DateTime)}
AND toUnixTimestamp64Micro(e.timestamp) IN {times_us:Array(Int64)}"""
        parameters |= {
            "tenants": sorted({row["tenant_id"] for row in among}),
            "hours": sorted({row["hour"] for row in among}),
            "times_us": sorted({row["time_us"] for row in among}),
        }
    columns = ", ".join(f"e.{name} AS {name}" for name in EVENT_FIELDS)
    sql = f"""SELECT {columns} FROM {TABLE} AS e FINAL PREWHERE {where}{filters}
ORDER BY e.timestamp DESC, e.request_id DESC LIMIT {{limit:UInt32}}"""
    return BoundQuery(sql, parameters | {"limit": limit + 1})


def candidates(
    window: Window, tenant_id: str | None, *, limit: int, after: str | None, asked: RequestFilter
) -> BoundQuery:
    """The tenant, hour and time of the newest `limit` event copies that pass `asked`.

    Reads only the filtered columns instead of whole rows, and merges nothing. An event whose newest copy passes has a
    copy that passes, so no event is missed; some candidates may no longer pass once their copies are merged."""
    where, parameters = _page(window, tenant_id, after)
    filters, bound = asked.where()
    sql = f"""SELECT e.tenant_id AS tenant_id, toStartOfHour(e.timestamp) AS hour,
toUnixTimestamp64Micro(e.timestamp) AS time_us
FROM {TABLE} AS e PREWHERE {where}{filters} ORDER BY e.timestamp DESC LIMIT {{limit:UInt32}}"""
    return BoundQuery(sql, parameters | bound | {"limit": limit})


def _page(window: Window, tenant_id: str | None, after: str | None) -> tuple[str, dict[str, Any]]:
    where, parameters = where_window(window, tenant_id)
    if after is None:
        return where, parameters
    timestamp_us, request_id = decode_cursor(after, int, str)
    where += " AND (toUnixTimestamp64Micro(e.timestamp), e.request_id) < ({after_us:Int64}, {after_id:String})"
    return where, parameters | {"after_us": timestamp_us, "after_id": request_id}


def request(window: Window, tenant_id: str | None, request_id: str) -> BoundQuery:
    """At most one event of the window."""
    where, parameters = where_window(window, tenant_id)
    columns = ", ".join(f"e.{name} AS {name}" for name in EVENT_FIELDS)
    sql = f"SELECT {columns} FROM {TABLE} AS e FINAL PREWHERE {where} AND e.request_id = {{request_id:String}} LIMIT 1"
    return BoundQuery(sql, parameters | {"request_id": request_id})


def time_of_cursor(after: str) -> datetime:
    """The timestamp in a cursor of a page of requests. Raises InvalidRequest."""
    timestamp_us, _ = decode_cursor(after, int, str)
    try:
        return datetime.fromtimestamp(timestamp_us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest("after: send the `next` of the page before", param="after") from None


def groups(
    pieces: Sequence[Piece],
    tenant_id: str | None,
    *,
    group_by: str,
    limit: int,
    after: str | None,
    has_percentiles: bool,
) -> BoundQuery:
    """Sums, and percentiles if requested, by group: one page plus one row, ordered by the group's value. The group
    without a value (no user, no adapter) comes first."""
    check_grouping(group_by)
    is_time = group_by in _BUCKETS
    # Treat an empty user as no user: otherwise both would sort at the same place, and a page could break between them.
    key = _BUCKETS[group_by] if is_time else f"nullIf(e.{GROUP_COLUMNS[group_by]}, '')"
    inner, parameters = _union(pieces, tenant_id, {"g": key}, has_percentiles=has_percentiles)
    having = ""
    if after is not None and is_time:
        [after_s] = decode_cursor(after, int)
        having, parameters = "AND toUnixTimestamp(g) > {after_s:Int64}", parameters | {"after_s": after_s}
    elif after is not None:
        [name] = decode_cursor(after, str)
        having, parameters = "AND ifNull(g, '') > {after:String}", parameters | {"after": name}
    order = "g" if is_time else "ifNull(g, '')"
    percentiles = f", {finished_quantiles()}" if has_percentiles else ""
    sql = f"""SELECT g, {_FINISHED}{percentiles} FROM ({inner}) AS e GROUP BY g
HAVING requests > 0 {having} ORDER BY {order} LIMIT {{limit:UInt32}}"""
    return BoundQuery(sql, parameters | {"limit": limit + 1})


def totals(
    pieces: Sequence[Piece],
    tenant_id: str | None,
    *,
    key_id: str | None = None,
    user_id: str | None = None,
    pool: str | None = None,
    has_percentiles: bool = False,
) -> BoundQuery:
    """Sums over all pieces. `user_id` may be given only if all pieces are events."""
    given = (("key_id", key_id), ("user_id", user_id), ("pool", pool))
    filters = {name: value for name, value in given if value is not None}
    inner, parameters = _union(pieces, tenant_id, {}, filters=filters, has_percentiles=has_percentiles)
    percentiles = f", {finished_quantiles()}" if has_percentiles else ""
    return BoundQuery(f"SELECT {_FINISHED}{percentiles} FROM ({inner}) AS e", parameters)


def summary(
    pieces: Sequence[Piece],
    tenant_id: str | None,
    *,
    column: str,
    bucket_s: int,
    edges: Sequence[int] | None = None,
) -> BoundQuery:
    """Sums in one pass: by time bucket (Unix seconds) and `column` (`level` 0), by `column` alone (2), and overall (3).

    column: a value of GROUP_COLUMNS. edges: bucket starts, where they are not multiples of `bucket_s`."""
    assert column in GROUP_COLUMNS.values()
    even = "intDiv(toUnixTimestamp({time}), {{bucket_s:UInt32}}) * {{bucket_s:UInt32}}"
    keys = {
        "bucket": even if edges is None else "roundDown(toUnixTimestamp({time}), {{edges:Array(UInt32)}})",
        "name": f"nullIf(toString(e.{column}), '')",
    }
    inner, parameters = _union(pieces, tenant_id, keys)
    sql = f"""SELECT grouping(bucket, name) AS level, bucket, name,
sum(e.prompt_tokens + e.completion_tokens) AS tokens, {_FINISHED}
FROM ({inner}) AS e GROUP BY GROUPING SETS ((bucket, name), (name), ())
HAVING requests > 0 OR level = 3 ORDER BY bucket, name"""
    return BoundQuery(sql, parameters | ({"bucket_s": bucket_s} if edges is None else {"edges": list(edges)}))


def refusals(window: Window, tenant_id: str | None, *, bucket: str, limit: int, after: str | None) -> BoundQuery:
    """Counts by time bucket, tenant, key, limit and status, in this order: one page plus one row."""
    where, parameters = _where_of("e.minute", window, tenant_id, suffix="")
    order = "timestamp, tenant_id, key_id, limit, status"
    having = ""
    if after is not None:
        names = ("after_s", "after_tenant", "after_key", "after_limit", "after_status")
        parameters |= dict(zip(names, decode_cursor(after, int, str, str, str, int), strict=True))
        having = """HAVING (toUnixTimestamp(timestamp), tenant_id, key_id, limit, status) > ({after_s:Int64},
{after_tenant:String}, {after_key:String}, {after_limit:String}, {after_status:UInt16})"""
    sql = f"""SELECT {_BUCKETS[bucket].format(time="e.minute")} AS timestamp,
e.tenant_id AS tenant_id, e.key_id AS key_id, e.limit AS limit, e.status AS status, sum(e.count) AS refusals
FROM refusals AS e FINAL WHERE {where} GROUP BY {order} {having} ORDER BY {order} LIMIT {{max_rows:UInt32}}"""
    return BoundQuery(sql, parameters | {"max_rows": limit + 1})


def refusals_by_limit(window: Window, tenant_id: str | None) -> BoundQuery:
    """Counts by limit and status, most frequent first."""
    where, parameters = _where_of("e.minute", window, tenant_id, suffix="")
    sql = f"""SELECT e.limit AS limit, e.status AS status, sum(e.count) AS refusals
FROM refusals AS e FINAL WHERE {where} GROUP BY limit, status ORDER BY refusals DESC, limit LIMIT 20"""
    return BoundQuery(sql, parameters)


def refusals_by_key(window: Window, tenant_id: str | None, *, limit: int) -> BoundQuery:
    """Counts by tenant, key, limit and status, most frequent first; last_at: the minute of the newest refusal."""
    where, parameters = _where_of("e.minute", window, tenant_id, suffix="")
    by = "tenant_id, key_id, limit, status"
    sql = f"""SELECT e.tenant_id AS tenant_id, e.key_id AS key_id, e.limit AS limit, e.status AS status,
sum(e.count) AS refusals, max(e.minute) AS last_at
FROM refusals AS e FINAL WHERE {where} GROUP BY {by} ORDER BY refusals DESC, {by} LIMIT {{max_rows:UInt32}}"""
    return BoundQuery(sql, parameters | {"max_rows": limit})


_FINISHED = """sum(e.requests) AS requests, sum(e.errors) AS errors,
sum(e.prompt_tokens) AS prompt_tokens, sum(e.cached_prompt_tokens) AS cached_prompt_tokens,
sum(e.completion_tokens) AS completion_tokens, sum(e.cost_nanousd) AS cost_nanousd,
sum(e.worker_compute_ms) AS worker_compute_ms,
if(sum(e.num_ttft) = 0, NULL, sum(e.ttft_ms_sum) / sum(e.num_ttft)) AS ttft_ms,
if(sum(e.requests) = 0, NULL, sum(e.total_latency_ms_sum) / sum(e.requests)) AS total_latency_ms"""


def _union(
    pieces: Sequence[Piece],
    tenant_id: str | None,
    keys: Mapping[str, str],
    *,
    filters: Mapping[str, str] = {},
    has_percentiles: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Each piece summed by `keys` (name -> expression over a row `e`, with `{time}` in place of its time column)."""
    parts, parameters = [], dict[str, Any](filters)
    for number, piece in enumerate(pieces):
        where, bound = _where(piece, tenant_id, number=number)
        parameters |= bound
        if filters:
            where += " WHERE " + " AND ".join(f"e.{name} = {{{name}:String}}" for name in filters)
        is_events = piece.table == TABLE
        selected = [f"{key.format(time=_time_of(piece))} AS {name}" for name, key in keys.items()]
        selected.append(EVENT_SUMS if is_events else ROLLUP_SUMS)
        if has_percentiles:
            selected.append(event_states() if is_events else merged_states())
        grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
        parts.append(f"SELECT {', '.join(selected)} FROM {piece.table} AS e FINAL PREWHERE {where}{grouped}")
    return "\nUNION ALL\n".join(parts), parameters


def where_window(window: Window, tenant_id: str | None) -> tuple[str, dict[str, Any]]:
    """Conditions on events `e`. The tenant comes first: it leads the index, and must never be forgotten."""
    return _where(Piece(TABLE, window), tenant_id, number=0)


def _where(piece: Piece, tenant_id: str | None, *, number: int) -> tuple[str, dict[str, Any]]:
    return _where_of(_time_of(piece), piece.window, tenant_id, suffix=f"_{number}")


def _where_of(time: str, window: Window, tenant_id: str | None, *, suffix: str) -> tuple[str, dict[str, Any]]:
    start, end = f"start_us{suffix}", f"end_us{suffix}"
    parameters: dict[str, Any] = {start: micros(window.start), end: micros(window.end)}
    where = (
        f"{time} >= fromUnixTimestamp64Micro({{{start}:Int64}}) AND {time} < fromUnixTimestamp64Micro({{{end}:Int64}})"
    )
    if tenant_id is None:
        return where, parameters
    return f"e.tenant_id = {{tenant_id:String}} AND {where}", parameters | {"tenant_id": tenant_id}


def _time_of(piece: Piece) -> str:
    return "e.timestamp" if piece.table == TABLE else "e.start"


def micros(moment: datetime) -> int:
    """Microseconds since the Unix epoch, exact."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
