"""Usage and costs in the format of OpenAI's organization API: whole time buckets, each with one result per group.

A project is a tenant. Money is sent as a JSON number with the exact decimals of its nano-dollars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gateway.http.errors import InvalidRequest
from gateway.metering.cursors import decode_cursor, encode_cursor
from gateway.metering.queries import UsageQueries
from gateway.metering.statements import BoundQuery, micros, where_window
from gateway.metering.store import TABLE
from gateway.metering.windows import Window

Json = dict[str, Any]
BUCKETS_S = {"1m": 60, "1h": 3600, "1d": 86_400}
_MODEL = """if(position(e.model_version, '@') = 0, e.model_version,
arrayStringConcat(arrayPopBack(splitByChar('@', e.model_version)), '@'))"""
_COLUMNS = {
    "project_id": "e.tenant_id",
    "user_id": "ifNull(e.user_id, '')",
    "api_key_id": "e.key_id",
    "model": _MODEL,
    "service_tier": "e.tier",
}
_LINE = "line.1"
COMPLETIONS_GROUPS = ("project_id", "user_id", "api_key_id", "model", "service_tier")
COSTS_GROUPS = ("project_id", "user_id", "api_key_id", "line_item")
MAX_ROWS = 100_000
"""Groups in one answer."""
_UNITEMISED = "tokens"


@dataclass(frozen=True)
class Question:
    window: Window
    bucket_s: int
    limit: int
    groups: tuple[str, ...]
    filters: Mapping[str, Sequence[str]]
    """Group -> the values to include; a missing group is not filtered."""
    tenant_id: str | None
    """None: every tenant."""

    def page(self, after: str | None) -> tuple[Window, str | None]:
        """The time range of the page's buckets, and the cursor of the next page."""
        first_s = micros(self.window.start) // 10**6 // self.bucket_s * self.bucket_s
        if after is not None:
            # A forged cursor must not make the page begin earlier.
            first_s = max(first_s, *decode_cursor(after, int))
        start = _moment(first_s)
        end = start + timedelta(seconds=self.bucket_s * self.limit)
        if end >= self.window.end:
            return Window(start, self.window.end), None
        return Window(start, end), encode_cursor(micros(end) // 10**6)


async def completions(queries: UsageQueries, question: Question, *, after: str | None) -> Json:
    sums = """count() AS num_model_requests, sum(e.prompt_tokens) AS input_tokens,
sum(e.cached_prompt_tokens) AS input_cached_tokens, sum(e.completion_tokens) AS output_tokens"""
    where = "AND ifNull(e.endpoint, '') != '/v1/embeddings'"
    window, following = question.page(after)
    rows = await _rows(queries, question, window, sums, f"{TABLE} AS e FINAL", where)
    names = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
    return _answer(
        question,
        window,
        rows,
        lambda row: {
            "object": "organization.usage.completions.result",
            **{name: int(row[name]) for name in names},
            **_group_of(row, question, COMPLETIONS_GROUPS),
            "batch": None,
        },
        following,
    )


async def costs(queries: UsageQueries, question: Question, *, after: str | None) -> Json:
    """Costs by group. A `line_item` is a model and a kind of token, as on invoices."""
    source, sums = f"{TABLE} AS e FINAL", "sum(e.cost_nanousd) AS nanousd"
    if "line_item" in question.groups or "line_item" in question.filters:
        source += f""" ARRAY JOIN if(empty(e.price_lines) AND e.cost_nanousd != 0,
[('{_UNITEMISED}', toInt64(e.prompt_tokens + e.completion_tokens), toInt64(0), e.cost_nanousd)],
arrayMap(l -> (toString(l.1), l.2, l.3, l.4), e.price_lines)) AS line"""
        sums = "sum(line.4) AS nanousd"
    window, following = question.page(after)
    rows = await _rows(queries, question, window, sums, source, "")
    return _answer(
        question,
        window,
        rows,
        lambda row: {
            "object": "organization.costs.result",
            "amount": {"value": Decimal(int(row["nanousd"])).scaleb(-9), "currency": "usd"},
            **_group_of(row, question, COSTS_GROUPS),
        },
        following,
    )


async def _rows(
    queries: UsageQueries, question: Question, window: Window, sums: str, source: str, where: str
) -> list[Json]:
    bounded = Window(max(window.start, question.window.start), window.end)
    conditions, parameters = where_window(bounded, question.tenant_id)
    columns = _COLUMNS | {"line_item": f"concat({_MODEL}, ', ', {_LINE})"}
    for name, values in question.filters.items():
        where += f" AND {columns[name]} IN {{only_{name}:Array(String)}}"
        parameters[f"only_{name}"] = list(values)
    keys = "".join(f", {columns[name]} AS {name}_group" for name in question.groups)
    names = "".join(f", {name}_group" for name in question.groups)
    sql = f"""SELECT intDiv(toUnixTimestamp(e.timestamp), {{bucket_s:UInt32}}) AS bucket{keys}, {sums}
FROM {source} WHERE {conditions} {where} GROUP BY bucket{names} ORDER BY bucket{names} LIMIT {MAX_ROWS + 1}"""
    rows = await queries.fetch(BoundQuery(sql, parameters | {"bucket_s": question.bucket_s}))
    if len(rows) > MAX_ROWS:
        raise InvalidRequest(f"more than {MAX_ROWS} groups; ask for fewer buckets", param="limit")
    return rows


def _answer(question: Question, window: Window, rows: Sequence[Json], result: Any, following: str | None) -> Json:
    """The page, including buckets without results."""
    by_bucket: dict[int, list[Json]] = {}
    for row in rows:
        by_bucket.setdefault(int(row["bucket"]), []).append(result(row))
    first = micros(window.start) // (question.bucket_s * 10**6)
    last = -(-micros(window.end) // (question.bucket_s * 10**6))
    buckets = [
        {
            "object": "bucket",
            "start_time": number * question.bucket_s,
            "end_time": (number + 1) * question.bucket_s,
            "results": by_bucket.get(number, []),
        }
        for number in range(first, last)
    ]
    return {"object": "page", "data": buckets, "has_more": following is not None, "next_page": following}


def _group_of(row: Json, question: Question, groups: Sequence[str]) -> Json:
    """Group values; null for a group that was not requested and for a missing value (no user)."""
    return {name: (row[f"{name}_group"] or None) if name in question.groups else None for name in groups}


def _moment(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest("page: send the `next_page` of the page before", param="page") from None
