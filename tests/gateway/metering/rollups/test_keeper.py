import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.metering.queries import UsagePage, UsageQueries
from gateway.metering.rollups.keeper import RollupKeeper
from gateway.metering.rollups.retention import Retention
from gateway.metering.schema import connect_migrated
from gateway.metering.store import UsageStore
from gateway.metering.windows import Window
from protocol.usage import UsageEvent
from tests.support.events import make_event

NOW = datetime(2026, 3, 4, 12, 20, tzinfo=UTC)
WINDOWS = (
    Window(NOW - timedelta(days=9), NOW + timedelta(seconds=1)),
    Window(datetime(2026, 2, 26, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)),
    Window(NOW - timedelta(days=2, minutes=7), NOW - timedelta(hours=3, seconds=1)),
    Window(NOW - timedelta(minutes=90), NOW),
)


@pytest.fixture
def keeper(clickhouse_url: str) -> Iterator[RollupKeeper]:
    with closing(RollupKeeper(clickhouse_url)) as opened:
        yield opened


@pytest.fixture
async def queries(clickhouse_url: str, store: UsageStore) -> AsyncIterator[UsageQueries]:
    """Reads rollups, where there are any."""
    store.prepare()
    # Each question an hour after the one before, so that the last sweep is looked up again.
    opened = UsageQueries(clickhouse_url, clock=_Clock())
    yield opened
    await opened.close()


@pytest.fixture
async def events_only(clickhouse_url: str, store: UsageStore) -> AsyncIterator[UsageQueries]:
    """In whose eyes nothing was rolled up yet."""
    store.prepare()
    opened = UsageQueries(clickhouse_url, clock=lambda: datetime(2000, 1, 1, tzinfo=UTC))
    yield opened
    await opened.close()


class _Clock:
    def __init__(self) -> None:
        self._now = NOW

    def __call__(self) -> datetime:
        self._now += timedelta(hours=1)
        return self._now


def random_events(rng: random.Random, count: int) -> list[UsageEvent]:
    return [
        make_event(
            f"r{rng.randrange(10**9)}",
            tenant_id=rng.choice(("a", "b", "c")),
            key_id=rng.choice(("k1", "k2")),
            user_id=rng.choice((None, "u1", "u2")),
            model_version=rng.choice(("m@1", "m@2", "n@1")),
            pool=rng.choice(("small", "large")),
            tier=rng.choice(("free", "pro")),
            adapter_id=rng.choice((None, "pirate")),
            prompt_tokens=rng.randrange(1000),
            cached_prompt_tokens=rng.randrange(10),
            completion_tokens=rng.randrange(1000),
            ttft_ms=rng.choice((None, rng.lognormvariate(4, 1))),
            total_latency_ms=rng.lognormvariate(6, 1),
            status=rng.choice(("ok", "error", "lost", "cancelled")),
            cost_nanousd=rng.randrange(10**9),
            timestamp=NOW - timedelta(seconds=rng.randrange(9 * 86400)),
        )
        for _ in range(count)
    ]


async def everything(queries: UsageQueries) -> list[Any]:
    """What all questions answer: the longest window's for one tenant, the others' for all."""
    return await asyncio.gather(
        *(
            question
            for window in WINDOWS
            for tenant_id in ["a" if window is WINDOWS[0] else None]
            for question in (
                queries.totals(window, tenant_id=tenant_id),
                *(
                    _series(queries, window, tenant_id, column, bucket_s)
                    for column, bucket_s in (("model_version", 86400), ("adapter_id", 3 * 3600), ("tenant_id", 1800))
                ),
                *(
                    queries.usage(window, tenant_id=tenant_id, group_by=group_by, limit=1000, has_percentiles=True)
                    for group_by in ("hour", "tenant", "user", "adapter")
                ),
            )
        )
    )


async def _series(
    queries: UsageQueries, window: Window, tenant_id: str | None, column: str, bucket_s: int
) -> list[Mapping[str, Any]]:
    return list((await queries.summary(window, tenant_id=tenant_id, column=column, bucket_s=bucket_s)).series)


async def test_rollups_answer_as_the_events_do_also_after_late_events_replays_and_corrections(
    keeper: RollupKeeper, store: UsageStore, queries: UsageQueries, events_only: UsageQueries
) -> None:
    rng = random.Random(7)
    first = random_events(rng, 400)
    store.insert(first)
    assert keeper.sweep(now=NOW) > 100
    assert plain(await everything(queries)) == approx(await everything(events_only))
    # Late ones, some again, and the gateway's own verdict on what was taken for lost, of another group.
    late = random_events(rng, 60)
    verdicts = [
        make_event(each.request_id, tenant_id=each.tenant_id, timestamp=each.timestamp, model_version="m@3", tier="x")
        for each in first
        if each.status == "lost"
    ]
    store.insert(late + first[:50] + verdicts)
    keeper.sweep(now=NOW)
    assert plain(await everything(queries)) == approx(await everything(events_only))
    before = await everything(queries)
    store.insert(first + late)
    keeper.sweep(now=NOW)
    keeper.sweep(now=NOW)
    assert plain(await everything(queries)) == approx(before)


@pytest.mark.parametrize(("column", "group_by"), [("model_version", "model"), ("adapter_id", "adapter")])
@pytest.mark.parametrize("tenant_id", [None, "a", "of nobody"])
async def test_a_summary_answers_as_totals_and_groups_do(
    keeper: RollupKeeper,
    store: UsageStore,
    queries: UsageQueries,
    tenant_id: str | None,
    column: str,
    group_by: str,
) -> None:
    store.insert(random_events(random.Random(9), 300))
    keeper.sweep(now=NOW)
    for window in WINDOWS:
        summary = await queries.summary(window, tenant_id=tenant_id, column=column, bucket_s=3600)
        totals = await queries.totals(window, tenant_id=tenant_id)
        page = await queries.usage(window, tenant_id=tenant_id, group_by=group_by)
        assert (totals["requests"] > 0) == (tenant_id != "of nobody")
        assert [of_names(summary.totals, totals)] == approx([totals])
        groups = sorted(summary.groups, key=lambda row: row[column] or "")
        assert [of_names(row, page.rows[0]) for row in groups] == approx(list(page.rows))
        by_name = Counter[str | None]()
        for row in summary.series:
            by_name[row["name"]] += row["requests"]
        assert by_name == {row[column]: row["requests"] for row in page.rows}
        hours = await queries.usage(window, tenant_id=tenant_id, group_by="hour", limit=1000)
        by_hour = Counter[int]()
        for row in summary.series:
            by_hour[row["bucket"]] += row["cost_nanousd"]
        assert by_hour == {int(row["timestamp"].timestamp()): row["cost_nanousd"] for row in hours.rows}


def of_names(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


async def test_long_windows_are_read_from_rollups_which_outlive_their_events(
    keeper: RollupKeeper, store: UsageStore, queries: UsageQueries, clickhouse_url: str
) -> None:
    old = [event for event in random_events(random.Random(3), 200) if event.timestamp < NOW - timedelta(hours=3)]
    store.insert(old)
    keeper.sweep(now=NOW)
    before = await queries.usage(WINDOWS[0], tenant_id=None, group_by="tenant")
    with connect_migrated(clickhouse_url) as client:
        client.command("TRUNCATE TABLE usage_events")
    after = await queries.usage(WINDOWS[0], tenant_id=None, group_by="tenant")
    # But for the edge of the window that is no whole hour.
    assert sum(row["requests"] for row in after.rows) > 0.98 * len(old)
    assert [row["tenant_id"] for row in after.rows] == [row["tenant_id"] for row in before.rows]


async def test_until_the_first_sweep_the_events_answer(
    store: UsageStore, queries: UsageQueries, keeper: RollupKeeper
) -> None:
    store.insert([make_event("r1", timestamp=NOW - timedelta(days=2))])
    assert (await queries.totals(WINDOWS[0], tenant_id=None))["requests"] == 1
    keeper.sweep(now=NOW)
    assert (await queries.totals(WINDOWS[0], tenant_id=None))["requests"] == 1


async def test_what_may_lag_is_as_old_as_the_last_sweep_and_exact_again_once_nobody_sweeps(
    keeper: RollupKeeper, store: UsageStore, clickhouse_url: str
) -> None:
    window = Window(datetime(2026, 3, 4, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC))
    store.insert([make_event(f"r{i}", tenant_id=tenant_id, timestamp=NOW) for i, tenant_id in enumerate("abc")])
    keeper.sweep(now=NOW)
    store.insert([make_event("late", tenant_id="a", timestamp=NOW)])
    for age, requests in ((timedelta(seconds=30), 3), (timedelta(minutes=3), 4)):
        queries = UsageQueries(clickhouse_url, clock=lambda age=age: NOW + age)  # type: ignore[misc]
        assert (await queries.totals(window, tenant_id=None, may_lag=True))["requests"] == requests
        assert (await queries.totals(window, tenant_id=None))["requests"] == 4
        await queries.close()


async def test_a_rebuild_mends_what_was_changed_by_hand(
    keeper: RollupKeeper, store: UsageStore, queries: UsageQueries, clickhouse_url: str
) -> None:
    store.insert([make_event(f"r{i}", timestamp=NOW - timedelta(hours=10 * i + 2)) for i in range(20)])
    keeper.sweep(now=NOW)
    with connect_migrated(clickhouse_url) as client:
        client.command("ALTER TABLE usage_events DELETE WHERE request_id IN ('r3', 'r7') SETTINGS mutations_sync = 2")
    assert (await queries.totals(WINDOWS[0], tenant_id=None))["requests"] == 20
    steps = list(keeper.rebuild(NOW - timedelta(days=10), NOW, now=NOW))
    assert steps[-1] == (20, 20)
    assert (await queries.totals(WINDOWS[0], tenant_id=None))["requests"] == 18


async def test_a_sweep_by_another_consumer_is_enough(
    keeper: RollupKeeper, store: UsageStore, clickhouse_url: str
) -> None:
    store.insert([make_event("r1", timestamp=NOW)])
    keeper.sweep(now=NOW)
    with connect_migrated(clickhouse_url) as client, closing(RollupKeeper(clickhouse_url)) as other:
        versions = "SELECT max(version) FROM usage_hours"
        [(before,)] = client.query(versions).result_rows
        other.sweep_if_due(now=NOW + timedelta(seconds=1))
        assert client.query(versions).result_rows == [(before,)]
        other.sweep_if_due(now=NOW + timedelta(seconds=30))
        assert client.query(versions).result_rows[0][0] > before


def test_what_outlived_its_events_is_not_made_zero(store: UsageStore, clickhouse_url: str) -> None:
    with closing(RollupKeeper(clickhouse_url)) as keeper, connect_migrated(clickhouse_url) as client:
        store.insert([make_event("r1", timestamp=NOW - timedelta(days=40))])
        keeper.sweep(now=NOW)
        client.command("TRUNCATE TABLE usage_events")
        with closing(RollupKeeper(clickhouse_url, Retention(events_days=30, hours_days=400))) as keeping:
            list(keeping.rebuild(NOW - timedelta(days=60), NOW, now=NOW))
        assert client.query("SELECT sum(requests) FROM usage_hours FINAL").result_rows == [(1,)]
        assert client.query("SELECT sum(requests) FROM usage_days FINAL").result_rows == [(1,)]


def test_retention_is_applied_changed_and_taken_back(store: UsageStore, clickhouse_url: str) -> None:
    store.prepare()

    def ttl() -> str:
        query = (
            "SELECT create_table_query FROM system.tables WHERE database = currentDatabase() AND name = 'usage_events'"
        )
        with connect_migrated(clickhouse_url) as client:
            [(text,)] = client.query(query).result_rows
        return str(text).partition("toIntervalDay(")[2].partition(")")[0]

    for days, shown in ((30, "30"), (30, "30"), (400, "400"), (None, "")):
        with closing(RollupKeeper(clickhouse_url, Retention(events_days=days))) as keeper:
            keeper.sweep(now=NOW)
        assert ttl() == shown


def approx(answers: Any) -> Any:
    """Rows as they are, but that floats are added up in another order."""
    if isinstance(answers, UsagePage):
        return approx(list(answers.rows))
    if isinstance(answers, list):
        return [approx(each) for each in answers]
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in answers.items()}


def plain(answers: list[Any]) -> list[Any]:
    return [list(each.rows) if isinstance(each, UsagePage) else each for each in answers]


def test_a_first_sweep_takes_years(keeper: RollupKeeper, store: UsageStore, clickhouse_url: str) -> None:
    store.insert([make_event(f"r{i}", timestamp=NOW - timedelta(hours=31 * i)) for i in range(500)])
    assert keeper.sweep(now=NOW) == 500
    # Today is no whole day yet.
    assert [rolled_up(clickhouse_url, table) for table in ("usage_hours", "usage_days")] == [500, 499]


def test_a_day_is_summed_up_once_it_is_over_also_when_nothing_came_since(
    keeper: RollupKeeper, store: UsageStore, clickhouse_url: str
) -> None:
    midnight = NOW.replace(hour=0, minute=0) + timedelta(days=1)
    store.insert([make_event(f"r{i}", timestamp=midnight - timedelta(minutes=i + 1)) for i in range(90)])
    keeper.sweep(now=midnight - timedelta(seconds=1))
    assert rolled_up(clickhouse_url, "usage_days") == 0
    keeper.sweep(now=midnight + timedelta(days=2))
    assert rolled_up(clickhouse_url, "usage_days") == 90
    store.insert([make_event("late", timestamp=midnight - timedelta(hours=5))])
    keeper.sweep(now=midnight + timedelta(days=2, seconds=10))
    assert rolled_up(clickhouse_url, "usage_days") == 91


def rolled_up(clickhouse_url: str, table: str) -> int:
    """How many requests stand there."""
    with connect_migrated(clickhouse_url) as client:
        return int(client.query(f"SELECT sum(requests) FROM {table} FINAL").result_rows[0][0])
