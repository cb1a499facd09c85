"""Reconciles usage with independent counts.

By tenant and hour: requests admitted by gateways = requests closed = rows in ClickHouse. By worker, tenant and hour:
tokens counted by workers = tokens in the events."""

import asyncio
import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.tenants.models import Tenant
from gateway.http.errors import Unavailable
from gateway.metering.queries import UsageQueries
from gateway.metering.statements import BoundQuery, micros
from gateway.metering.windows import Window
from gateway.metrics import Metrics
from gateway.upstream.client import MemberFailed, WorkerClient
from gateway.upstream.registry import Registry
from protocol.ledger import Ledger, LedgerRow

_log = logging.getLogger(__name__)

EVERY_S = 300
LOOK_BACK = timedelta(hours=48)
LATEST_LASTS = timedelta(minutes=1)
SETTLED_AFTER = timedelta(minutes=15)
"""Time after an hour's end by which its requests are over and their events have passed outbox and Kafka."""
LEDGER_DEADLINE_S = 10
CUT_TOKENS = 256
"""Tolerated tokens per answer that was cut off or continued on another worker: a worker may have sent them although the
gateway never read them, or they may be counted at another worker."""
_NAMED_AT_ONCE = 1000
_WITHIN = """timestamp >= fromUnixTimestamp64Micro({start_us:Int64})
AND timestamp < fromUnixTimestamp64Micro({end_us:Int64})"""
_EVENTS = f"""SELECT tenant_id, toStartOfHour(timestamp) AS hour,
has({{known:Array(String)}}, ifNull(worker_id, '')) AS is_known, if(is_known, worker_id, '') AS worker,
count() AS num_events, sum(if(cached_answer, 0, completion_tokens)) AS billed_tokens,
countIf(status != 'ok' OR num_attempts > 1) AS num_cut,
sumIf(completion_tokens, status != 'ok' OR num_attempts > 1) AS cut_tokens,
groupUniqArrayIf(worker_id, NOT is_known) AS silent_workers
FROM usage_events FINAL PREWHERE {_WITHIN} GROUP BY tenant_id, hour, is_known, worker"""
"""By worker only if its ledger is known, so that workers that are gone do not cost a row each."""
_RETRIED = f"""SELECT arrayJoin(arrayFilter(each -> each != ifNull(worker_id, ''), arrayDistinct(
    JSONExtract(ifNull(decision, ''), 'tried', 'Array(String)')))) AS worker, tenant_id,
toStartOfHour(timestamp) AS hour, count() AS num_cut, sum(completion_tokens) AS cut_tokens
FROM usage_events FINAL PREWHERE {_WITHIN} AND (tenant_id, toStartOfHour(timestamp)) IN (
    SELECT tenant_id, toStartOfHour(timestamp) FROM usage_events PREWHERE {_WITHIN} WHERE num_attempts > 1)
WHERE num_attempts > 1 GROUP BY worker, tenant_id, hour"""
"""Requests that were sent to several workers. The workers to which the request is not billed may have sent tokens, too:
before they died, or in parallel with a faster worker. The subquery excludes, without merging copies, tenants and hours
that have no such requests."""
_BOOKS = """SELECT tenant_id, hour, sum(admitted) AS num_admitted, sum(closed) AS num_closed,
sum(rolled_up) AS num_rolled_up FROM (
    SELECT tenant_id, hour, num_admitted AS admitted, num_closed AS closed, 0 AS rolled_up
    FROM admissions FINAL WHERE hour >= toDateTime({start_s:Int64}, 'UTC') AND hour < toDateTime({end_s:Int64}, 'UTC')
    UNION ALL
    SELECT tenant_id, start AS hour, 0, 0, sum(requests) FROM usage_hours FINAL
    WHERE start >= toDateTime({start_s:Int64}, 'UTC') AND start < toDateTime({end_s:Int64}, 'UTC')
    GROUP BY tenant_id, hour
) GROUP BY tenant_id, hour"""
_FIRST_HOUR = "SELECT if(count() = 0, now('UTC'), min(hour)) AS hour FROM admissions"
"""The hour since which gateways count admissions."""
Row = dict[str, Any]


@dataclass(frozen=True)
class EventCounts:
    tenant_id: str
    hour: datetime
    num_admitted: int
    num_closed: int
    """Requests whose close is durable in the gateways' outboxes."""
    num_events: int
    """Rows in ClickHouse, without copies."""
    num_rolled_up: int
    is_settled: bool
    """False if the hour is too recent to be judged."""
    is_known_tenant: bool
    """False if the database has no such tenant, so that its events are on no invoice."""

    @property
    def num_unreconciled(self) -> int:
        return max(0, self.num_missing) + (0 if self.is_known_tenant else self.num_events)

    @property
    def num_missing(self) -> int:
        """Negative for events that no gateway counted, such as those of its last 0.25 s before kill -9."""
        return max(self.num_admitted, self.num_closed) - self.num_events


@dataclass(frozen=True)
class TokenCounts:
    worker_id: str
    tenant_id: str
    hour: datetime
    counted_tokens: int
    """Tokens sent to gateways according to the worker's own ledger."""
    billed_tokens: int
    """Tokens in events."""
    tolerance: int
    """The difference that answers that were cut off or continued on another worker may explain."""
    is_settled: bool

    @property
    def num_missing(self) -> int:
        """Tokens that were counted but are in no event; negative: tokens in events that were never counted."""
        return self.counted_tokens - self.billed_tokens

    @property
    def is_difference(self) -> bool:
        return abs(self.num_missing) > self.tolerance


@dataclass(frozen=True)
class Reconciliation:
    window: Window
    events: Sequence[EventCounts]
    tokens: Sequence[TokenCounts]
    silent_workers: Sequence[str]
    """Workers that appear in events but in no ledger: they are gone, or not ours."""

    @property
    def num_unreconciled_events(self) -> int:
        return sum(each.num_unreconciled for each in self.events if each.is_settled)

    @property
    def num_unreconciled_tokens(self) -> int:
        return sum(abs(each.num_missing) for each in self.tokens if each.is_settled and each.is_difference)


class Reconciler:
    def __init__(
        self, sessions: Sessions, queries: UsageQueries, registry: Registry, workers: WorkerClient, metrics: Metrics
    ) -> None:
        self._sessions = sessions
        self._queries = queries
        self._registry = registry
        self._workers = workers
        self._metrics = metrics
        self._latest: tuple[datetime, Reconciliation] | None = None

    async def latest(self, window: Window, *, now: datetime) -> Reconciliation:
        """The last reconciliation if it is at most LATEST_LASTS old, whatever its window; otherwise a new one.

        Cached because a reconciliation queries every worker."""
        if self._latest is None or now - self._latest[0] > LATEST_LASTS:
            self._latest = now, await self.reconcile(window, now=now)
        return self._latest[1]

    async def run_forever(self) -> None:
        """Report unreconciled events and tokens on `/metrics`.

        The figures stay as they are while ClickHouse or the database is unavailable."""
        while True:
            await asyncio.sleep(EVERY_S)
            now = utc_now()
            try:
                found = await self.reconcile(Window(now - LOOK_BACK, now), now=now)
            except (Unavailable, SQLAlchemyError, OSError):
                continue
            self._metrics.unreconciled_events.set(found.num_unreconciled_events)
            self._metrics.unreconciled_tokens.set(found.num_unreconciled_tokens)
            for each in found.events:
                if each.is_settled and each.num_unreconciled:
                    _log.error(_describe(each))

    async def reconcile(self, window: Window, *, now: datetime) -> Reconciliation:
        """Reconcile the window, extended to whole hours. Raises Unavailable."""
        window = _whole_hours(window)
        ledgers = await asyncio.gather(*map(self._ledger_of, self._urls()))
        counted = [row for rows in ledgers for row in rows]
        known = {row.worker_id for row in counted}
        bounds = {"start_us": micros(window.start), "end_us": micros(window.end)}
        hours = {"start_s": int(window.start.timestamp()), "end_s": int(window.end.timestamp())}
        events, retried, books, [first] = await asyncio.gather(
            self._queries.fetch(BoundQuery(_EVENTS, bounds | {"known": sorted(known)})),
            self._queries.fetch(BoundQuery(_RETRIED, bounds)),
            self._queries.fetch(BoundQuery(_BOOKS, hours)),
            self._queries.fetch(BoundQuery(_FIRST_HOUR)),
        )
        tenants = await self._known_tenants({row["tenant_id"] for row in (*events, *books)})
        told = [row for row in counted if hours["start_s"] <= row.hour_s < hours["end_s"] and row.tenant_id]
        silent = {worker for row in events for worker in row["silent_workers"]}
        silent |= {row["worker"] for row in retried} - known
        by_worker = [row for row in events if row["is_known"]]
        tried = [row for row in retried if row["worker"] in known]
        # A busy week has hundreds of thousands of rows.
        return await asyncio.to_thread(
            lambda: Reconciliation(
                window,
                events=_add_up(events, books, tenants, since=first["hour"], now=now),
                tokens=_compare(told, by_worker, tried, now),
                silent_workers=sorted(silent - {""}),
            )
        )

    async def _known_tenants(self, ids: Iterable[str]) -> set[str]:
        """The ids that are tenants, including deleted ones, whose rows stay in the database."""
        wanted, known = list(_uuids(ids)), set[str]()
        async with self._sessions() as session:
            for first in range(0, len(wanted), _NAMED_AT_ONCE):
                query = select(Tenant.id).where(Tenant.id.in_(wanted[first : first + _NAMED_AT_ONCE]))
                known |= {str(tenant_id) for tenant_id in await session.scalars(query)}
        return known

    def _urls(self) -> set[str]:
        pools = self._registry.fleet.pools.values()
        return {member.url for pool in pools for member in pool.members if member.engine == "tiergate"}

    async def _ledger_of(self, url: str) -> Sequence[LedgerRow]:
        """The worker's ledger rows; none if it does not answer, so that its events cannot be compared."""
        try:
            status, body = await self._workers.get(url, "/ledger", engine="tiergate", deadline_s=LEDGER_DEADLINE_S)
            return msgspec.json.decode(body, type=Ledger).rows if status == 200 else ()
        except (MemberFailed, msgspec.DecodeError) as error:
            _log.warning("no ledger from %s: %s", url, error)
            return ()


def _add_up(
    events: Iterable[Row], books: Iterable[Row], tenants: Container[str], *, since: datetime, now: datetime
) -> list[EventCounts]:
    """Sorted by hour and tenant, without the hours before gateways counted admissions."""
    nothing = {"num_admitted": 0, "num_closed": 0, "num_rolled_up": 0}
    noted = {(row["hour"], row["tenant_id"]): row for row in books}
    num_events = Counter[tuple[datetime, str]]()
    for row in events:
        num_events[row["hour"], row["tenant_id"]] += row["num_events"]
    found = []
    for hour, tenant_id in sorted(noted.keys() | num_events.keys()):
        if hour >= since:
            book = noted.get((hour, tenant_id), nothing)
            found.append(
                EventCounts(
                    tenant_id,
                    hour,
                    num_admitted=book["num_admitted"],
                    num_closed=book["num_closed"],
                    num_events=num_events[hour, tenant_id],
                    num_rolled_up=book["num_rolled_up"],
                    is_settled=_is_settled(hour, now),
                    is_known_tenant=tenant_id in tenants,
                )
            )
    return found


def _compare(
    counted: Iterable[LedgerRow], events: Iterable[Row], retried: Iterable[Row], now: datetime
) -> list[TokenCounts]:
    """Sorted by hour, tenant and worker, for workers whose ledgers are known."""
    told, billed, tolerance = (Counter[tuple[datetime, str, str]]() for _ in range(3))
    for row in counted:
        told[datetime.fromtimestamp(row.hour_s, UTC), row.tenant_id, row.worker_id] += row.completion_tokens
    for event in events:
        billed[event["hour"], event["tenant_id"], event["worker"]] += event["billed_tokens"]
    for cut in (*events, *retried):
        tolerance[cut["hour"], cut["tenant_id"], cut["worker"]] += cut["cut_tokens"] + CUT_TOKENS * cut["num_cut"]
    return [
        TokenCounts(
            worker_id,
            tenant_id,
            hour,
            counted_tokens=told[hour, tenant_id, worker_id],
            billed_tokens=billed[hour, tenant_id, worker_id],
            tolerance=tolerance[hour, tenant_id, worker_id],
            is_settled=_is_settled(hour, now),
        )
        for hour, tenant_id, worker_id in sorted(told.keys() | billed.keys() | tolerance.keys())
    ]


def _describe(counts: EventCounts) -> str:
    hour, tenant_id = counts.hour.isoformat(), counts.tenant_id
    if not counts.is_known_tenant:
        return f"{counts.num_events} usage events of {hour} name tenant {tenant_id!r}, which does not exist"
    return f"{counts.num_missing} usage events of tenant {tenant_id} are missing in {hour}"


def _uuids(ids: Iterable[str]) -> Iterator[UUID]:
    for text in ids:
        with suppress(ValueError):
            yield UUID(text)


def _is_settled(hour: datetime, now: datetime) -> bool:
    return hour + timedelta(hours=1) + SETTLED_AFTER <= now


def _whole_hours(window: Window) -> Window:
    start = window.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    end = window.end.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return Window(start, end if end == window.end else end + timedelta(hours=1))
