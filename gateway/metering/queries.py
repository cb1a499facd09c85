"""Reads usage from ClickHouse: off the event loop, each query with a deadline."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from gateway.clock import utc_now
from gateway.http.errors import Unavailable
from gateway.metering import statements
from gateway.metering.clickhouse import connect, database_of
from gateway.metering.cursors import encode_cursor
from gateway.metering.rollups.pieces import Grain, Piece, rolled_until, split
from gateway.metering.statements import ALL_REQUESTS, GROUP_COLUMNS, BoundQuery, RequestFilter
from gateway.metering.windows import Window, month_until

DEADLINE_S = 10.0
ASK_SWEEPS_S = 10
MAY_LAG = timedelta(minutes=2)
"""Maximum age of the console's figures over all tenants. The age is that of the last sweep: 10 s, or 60 s without new
events."""
_LOOK_BACK = (timedelta(minutes=10), timedelta(hours=6))
_LOOK_BACK_FILTERED = (timedelta(hours=6), timedelta(days=2))
_MAX_CANDIDATES = 200
"""Copies of events among which a filtered page is searched: enough for a console page and as many duplicates."""
_NUM_THREADS = 4
_SETTINGS = {"do_not_merge_across_partitions_select_final": 1, "max_execution_time": int(DEADLINE_S)}
T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class UsagePage:
    rows: Sequence[Row]
    next: str | None


@dataclass(frozen=True)
class Summary:
    totals: Row
    groups: Sequence[Row]
    """Sums by the requested column, in no particular order."""
    series: Sequence[Row]
    """The same sums by time bucket as well."""


class UsageQueries:
    """All methods raise Unavailable (503) while ClickHouse is unreachable, slow, or not configured."""

    def __init__(self, url: str | None, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._url = url
        self._clock = clock
        self._swept_at: datetime | None = None
        """When the rollups were last updated, as of `_asked_at`."""
        self._asked_at: datetime | None = None
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="usage")
        self._lock = threading.Lock()
        self._client: Client | None = None

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        self._forget()

    async def usage(
        self,
        window: Window,
        *,
        tenant_id: str | None,
        group_by: str,
        limit: int = 100,
        after: str | None = None,
        has_percentiles: bool = False,
        may_lag: bool = False,
        asked: RequestFilter = ALL_REQUESTS,
    ) -> UsagePage:
        """Events (`request`, newest first) or sums by group. Raises InvalidRequest for a bad group or cursor.

        may_lag: answer from rollups alone where they cover the window. Events of the last hour are expensive to find
        for all tenants, because the index is by tenant. asked: applies to `request` only.
        """
        statements.check_grouping(group_by)
        if group_by == "request":
            rows = await self._newest(window, tenant_id, limit=limit, after=after, asked=asked)
        else:
            pieces = await self._pieces(window, statements.grain_of(group_by), may_lag=may_lag)
            rows = await self.fetch(
                statements.groups(
                    pieces, tenant_id, group_by=group_by, limit=limit, after=after, has_percentiles=has_percentiles
                )
            )
        shown = rows[:limit]
        has_more = len(rows) > limit
        cursor = _cursor(shown[-1], group_by) if has_more else None
        if group_by != "request":
            column = GROUP_COLUMNS[group_by]
            shown = [{column: row.pop("g"), **row} for row in shown]
        return UsagePage(shown, cursor)

    async def request(self, window: Window, request_id: str, *, tenant_id: str | None) -> Row | None:
        """All fields of one event in the window; None if there is no such event."""
        rows = await self.fetch(statements.request(window, tenant_id, request_id))
        return rows[0] if rows else None

    async def totals(
        self, window: Window, *, tenant_id: str | None, may_lag: bool = False, has_percentiles: bool = False
    ) -> Row:
        pieces = await self._pieces(window, "day", may_lag=may_lag)
        [row] = await self.fetch(statements.totals(pieces, tenant_id, has_percentiles=has_percentiles))
        return row

    async def exact_totals(
        self,
        window: Window,
        *,
        tenant_id: str | None,
        key_id: str | None = None,
        user_id: str | None = None,
        pool: str | None = None,
    ) -> Row:
        """Totals from the events themselves, for callers that must not miss one: a rollup lags by seconds."""
        pieces = [Piece("usage_events", window)]
        [row] = await self.fetch(statements.totals(pieces, tenant_id, key_id=key_id, user_id=user_id, pool=pool))
        return row

    async def refusals(
        self, window: Window, *, tenant_id: str | None, bucket: str, limit: int = 100, after: str | None = None
    ) -> UsagePage:
        """Refusals before admission by time, tenant, key, limit and status. Raises InvalidRequest for a bad cursor."""
        query = statements.refusals(window, tenant_id, bucket=bucket, limit=limit, after=after)
        rows = await self.fetch(query)
        shown, cursor = rows[:limit], None
        if len(rows) > limit:
            last = shown[-1]
            names = ("tenant_id", "key_id", "limit", "status")
            cursor = encode_cursor(int(last["timestamp"].timestamp()), *(last[name] for name in names))
        return UsagePage(shown, cursor)

    async def refusals_by_limit(self, window: Window, *, tenant_id: str | None) -> list[Row]:
        """Refusals before admission by limit and status, the most frequent first."""
        return await self.fetch(statements.refusals_by_limit(window, tenant_id))

    async def refusals_by_key(self, window: Window, *, tenant_id: str | None, limit: int) -> list[Row]:
        """As `refusals_by_limit`, but also by tenant and key, with the time of the newest."""
        return await self.fetch(statements.refusals_by_key(window, tenant_id, limit=limit))

    async def summary(
        self,
        window: Window,
        *,
        tenant_id: str | None,
        column: str,
        bucket_s: int,
        edges: Sequence[int] | None = None,
        may_lag: bool = False,
    ) -> Summary:
        """Totals, groups and time series of the same requests in one query.

        Over all tenants this costs a third of three queries. edges: bucket starts, on whole hours, instead of multiples
        of `bucket_s`."""
        grain = statements.grain_of_buckets(bucket_s) if edges is None else "hour"
        pieces = await self._pieces(window, grain, may_lag=may_lag)
        rows = await self.fetch(statements.summary(pieces, tenant_id, column=column, bucket_s=bucket_s, edges=edges))
        return Summary(
            totals=next(row for row in rows if row["level"] == 3),
            groups=[{column: row["name"], **row} for row in rows if row["level"] == 2],
            series=[row for row in rows if row["level"] == 0],
        )

    async def spent_this_month(self, tenant_id: str, *, now: datetime) -> int:
        """The cost of the tenant's shipped events of this calendar month (UTC), in 1e-9 dollars."""
        row = await self.exact_totals(month_until(now), tenant_id=tenant_id)
        return int(row["cost_nanousd"])

    async def _newest(
        self, window: Window, tenant_id: str | None, *, limit: int, after: str | None, asked: RequestFilter
    ) -> list[Row]:
        """Search the most recent minutes, hours or days first, and further back only if they hold no more than a page.

        The index is by tenant, not by time, so a long window is expensive."""
        is_filtered = asked != ALL_REQUESTS and limit <= _MAX_CANDIDATES // 2
        find = self._filtered if is_filtered else self._all
        end = min(window.end, self._clock() + timedelta(minutes=1))
        if after is not None:
            end = min(end, statements.time_of_cursor(after) + timedelta(seconds=1))
        for span in _LOOK_BACK_FILTERED if is_filtered else _LOOK_BACK:
            if window.start < end - span:
                rows = await find(Window(end - span, window.end), tenant_id, limit, after, asked)
                if len(rows) > limit:
                    return rows
        return await find(window, tenant_id, limit, after, asked)

    async def _all(
        self, window: Window, tenant_id: str | None, limit: int, after: str | None, asked: RequestFilter
    ) -> list[Row]:
        return await self.fetch(statements.requests(window, tenant_id, limit=limit, after=after, asked=asked))

    async def _filtered(
        self, window: Window, tenant_id: str | None, limit: int, after: str | None, asked: RequestFilter
    ) -> list[Row]:
        """As `_all`, for filters that few rows pass: first find where the rows are, then read them."""
        found = await self.fetch(
            statements.candidates(window, tenant_id, limit=_MAX_CANDIDATES, after=after, asked=asked)
        )
        if not found:
            return []
        rows = await self.fetch(
            statements.requests(window, tenant_id, limit=limit, after=after, asked=asked, among=found)
        )
        is_whole = len(rows) > limit or len(found) < _MAX_CANDIDATES
        return rows if is_whole else await self._all(window, tenant_id, limit, after, asked)

    async def _pieces(self, window: Window, grain: Grain, *, may_lag: bool) -> list[Piece]:
        """The tables to read. Only events are read until a first sweep is known to have finished."""
        now = self._clock()
        if grain != "event" and (self._asked_at is None or now - self._asked_at >= timedelta(seconds=ASK_SWEEPS_S)):
            self._asked_at = now
            self._swept_at = await self._in_thread(self._query_swept_at)
        is_fresh = self._swept_at is not None and now - self._swept_at < MAY_LAG
        until = window.end if may_lag and is_fresh else rolled_until(self._swept_at, now=now)
        return split(window, rolled_until=until, swept_at=self._swept_at, grain=grain)

    def _query_swept_at(self) -> datetime | None:
        try:
            rows = self._query("SELECT max(swept_at) AS swept_at, count() AS num FROM usage_rollup_sweeps", {})
        except DatabaseError:
            # No consumer of this version has migrated the tables yet.
            return None
        return rows[0]["swept_at"] if rows[0]["num"] else None

    async def fetch(self, query: BoundQuery) -> list[Row]:
        return await self._in_thread(lambda: self._query(query.sql, query.parameters))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await loop.run_in_executor(self._threads, call)
        except (ClickHouseError, OSError, TimeoutError) as error:
            # A query still running on the old client ends at its own deadline; the next query reconnects.
            self._forget()
            raise Unavailable("usage cannot be read at the moment; it is not lost", retry_after_s=5) from error

    def _query(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        result = self._connected().query(sql, parameters=dict(parameters), settings=_SETTINGS)
        return [dict(row) for row in result.named_results()]

    def _connected(self) -> Client:
        if not self._url:
            raise Unavailable("this gateway has no CLICKHOUSE_URL, so usage cannot be read here", retry_after_s=60)
        with self._lock:
            if self._client is None:
                self._client = connect(self._url, database=database_of(self._url))
            return self._client

    def _forget(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def _cursor(last: Row, group_by: str) -> str:
    if group_by == "request":
        return encode_cursor(round(last["timestamp"].timestamp() * 1_000_000), last["request_id"])
    if isinstance(last["g"], datetime):
        return encode_cursor(int(last["g"].timestamp()))
    return encode_cursor(last["g"] or "")
