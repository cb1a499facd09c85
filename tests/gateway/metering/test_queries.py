from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gateway.http.errors import InvalidRequest, Unavailable
from gateway.metering.queries import UsageQueries
from gateway.metering.statements import GROUPINGS, RequestFilter
from gateway.metering.store import UsageStore
from gateway.metering.windows import Window, parse_window
from tests.support.events import make_event
from tests.support.ports import free_port

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
DAY = Window(NOON - timedelta(hours=12), NOON + timedelta(hours=12))


@pytest.fixture
async def queries(clickhouse_url: str, store: UsageStore) -> AsyncIterator[UsageQueries]:
    store.prepare()
    opened = UsageQueries(clickhouse_url)
    yield opened
    await opened.close()


async def all_rows(queries: UsageQueries, **question: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        page = await queries.usage(DAY, **question, after=after)
        rows += page.rows
        after = page.next
        if after is None:
            return rows


@pytest.mark.parametrize("group_by", GROUPINGS)
async def test_a_tenant_sees_only_its_own(queries: UsageQueries, store: UsageStore, group_by: str) -> None:
    store.insert(
        [
            make_event("mine", tenant_id="a", timestamp=NOON, cost_nanousd=5),
            make_event("theirs", tenant_id="b", timestamp=NOON, cost_nanousd=70),
        ]
    )
    [row] = await all_rows(queries, tenant_id="a", group_by=group_by)
    assert row["cost_nanousd"] == 5
    assert sum(row["cost_nanousd"] for row in await all_rows(queries, tenant_id=None, group_by=group_by)) == 75


@pytest.mark.parametrize("evil", ["' OR 1=1 --", "a' OR 'a'='a", "\\' OR 1=1", "{tenant_id:String}", ""])
async def test_a_tenant_id_is_never_sql(queries: UsageQueries, store: UsageStore, evil: str) -> None:
    store.insert([make_event("theirs", tenant_id="b", timestamp=NOON)])
    assert await all_rows(queries, tenant_id=evil, group_by="request") == []


async def test_replays_are_counted_once(queries: UsageQueries, store: UsageStore) -> None:
    for _ in range(3):
        store.insert([make_event("r1", timestamp=NOON, cost_nanousd=7), make_event("r2", timestamp=NOON)])
    [row] = await all_rows(queries, tenant_id="acme", group_by="day")
    assert row["requests"] == 2
    assert (await queries.totals(DAY, tenant_id="acme"))["cost_nanousd"] == 7 + 4200


async def test_every_page_together_is_every_event_newest_first(queries: UsageQueries, store: UsageStore) -> None:
    # Many share an instant, so that pages break within it.
    events = [make_event(f"r{i:03}", timestamp=NOON + timedelta(microseconds=i // 10)) for i in range(95)]
    store.insert(events)
    rows = await all_rows(queries, tenant_id="acme", group_by="request", limit=7)
    assert [row["request_id"] for row in rows] == [event.request_id for event in reversed(events)]
    assert rows[0]["timestamp"] == events[-1].timestamp


async def test_pages_of_groups_are_complete_also_with_a_group_without_a_name(
    queries: UsageQueries, store: UsageStore
) -> None:
    names = [None, "", "Zoë", "a'b", "x" * 512]
    store.insert([make_event(f"r{i}", user_id=names[i], timestamp=NOON) for i in range(5)])
    rows = await all_rows(queries, tenant_id="acme", group_by="user", limit=1)
    assert [(row["user_id"], row["requests"]) for row in rows] == [
        (None, 2),
        ("Zoë", 1),
        ("a'b", 1),
        ("x" * 512, 1),
    ]


async def test_time_buckets_start_on_the_utc_clock(queries: UsageQueries, store: UsageStore) -> None:
    store.insert([make_event(f"r{i}", timestamp=NOON + timedelta(minutes=20 * i)) for i in range(6)])
    rows = await all_rows(queries, tenant_id="acme", group_by="hour", limit=1)
    assert [(row["timestamp"], row["requests"]) for row in rows] == [(NOON, 3), (NOON + timedelta(hours=1), 3)]


async def test_a_window_is_half_open(queries: UsageQueries, store: UsageStore) -> None:
    store.insert([make_event("first", timestamp=DAY.start), make_event("after", timestamp=DAY.end)])
    rows = await all_rows(queries, tenant_id=None, group_by="request")
    assert [row["request_id"] for row in rows] == ["first"]


async def test_the_month_so_far_is_the_calendar_month_in_utc(queries: UsageQueries, store: UsageStore) -> None:
    month = datetime(2026, 3, 1, tzinfo=UTC)
    for i, moment in enumerate([month - timedelta(microseconds=1), month, NOON, NOON + timedelta(days=1)]):
        store.insert([make_event(f"r{i}", timestamp=moment, cost_nanousd=10**i)])
    assert await queries.spent_this_month("acme", now=NOON) == 110
    assert await queries.spent_this_month("nobody", now=NOON) == 0


@pytest.mark.parametrize("after", ["", "zzz", "W10", "WzEsMl0", "é"])
async def test_a_made_up_cursor_is_refused(queries: UsageQueries, after: str) -> None:
    for group_by in ("request", "day", "user"):
        with pytest.raises(InvalidRequest) as refused:
            await queries.usage(DAY, tenant_id=None, group_by=group_by, after=after)
        assert refused.value.param == "after"


@pytest.mark.parametrize("url", [None, "dead"])
async def test_usage_that_cannot_be_read_is_unavailable(url: str | None) -> None:
    queries = UsageQueries(url and f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable):
        await queries.usage(DAY, tenant_id=None, group_by="day")
    await queries.close()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-04T12:00:00Z", NOON),
        ("2026-03-04T13:00:00+01:00", NOON),
        ("2026-03-04T13:00:00 01:00", NOON),
        ("2026-03-04T12:00", NOON),
        ("2026-03-04", NOON - timedelta(hours=12)),
        ("1772625600", NOON),
    ],
)
def test_times_are_read_as_clients_write_them(text: str, moment: datetime) -> None:
    assert parse_window(text, None, now=NOON + timedelta(days=1)).start == moment


@pytest.mark.parametrize(
    ("start", "end", "param"),
    [
        ("yesterday", None, "from"),
        (None, "2026-13-01", "to"),
        ("2026-03-05", "2026-03-04", "from"),
        ("0001-01-01", None, "from"),
        ("9" * 30, None, "from"),
        ("", None, "from"),
    ],
)
def test_a_bad_time_is_refused_by_name(start: str | None, end: str | None, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_window(start, end, now=NOON)
    assert refused.value.param == param


async def test_a_filtered_page_knows_the_newest_copy_of_each_event(queries: UsageQueries, store: UsageStore) -> None:
    """More stale copies pass than are looked at, spread over three tenants and half a year of days."""
    events = [
        make_event(
            f"r{i:03}", tenant_id="abc"[i % 3], timestamp=NOON - timedelta(hours=7 * i), status="lost", user_id="zoë"
        )
        for i in range(300)
    ]
    store.insert(events)
    store.insert([msgspec.structs.replace(event, status="ok") for event in events[:270]])
    half_year = Window(NOON - timedelta(days=180), NOON + timedelta(hours=1))
    for asked, expected in (
        (RequestFilter(status="lost"), events[270:]),
        (RequestFilter(status="ok"), events[:270]),
        (RequestFilter(status="ok", user_id="zoë", min_latency_ms=1), events[:270]),
        (RequestFilter(status="error"), []),
    ):
        for tenant_id in (None, "b"):
            found: list[str] = []
            after = None
            while True:
                page = await queries.usage(
                    half_year, tenant_id=tenant_id, group_by="request", limit=20, after=after, asked=asked
                )
                found += [row["request_id"] for row in page.rows]
                after = page.next
                if after is None:
                    break
            assert found == [event.request_id for event in expected if tenant_id in (None, event.tenant_id)]
