from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.clock import utc_now
from gateway.domain.principal import Principal
from gateway.metering.adoption import adopt_orphans
from gateway.metering.consumer import Consumer
from gateway.metering.journal import Journal
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from gateway.metering.records import decode_counts
from gateway.metering.refusals import MAX_KEYS, RefusalCounter
from gateway.metering.store import UsageStore
from gateway.metering.windows import parse_window
from protocol.counts import AdmissionCount, GatewayCounts, RefusalCount
from tests.support.events import OpenEvent, make_event

MINUTE_S = 1_772_625_600


def who(tenant: str, key: str = "k") -> Principal:
    return cast(Principal, SimpleNamespace(tenant_text=tenant, key_text=key))


def test_counts_are_by_minute_and_told_when_they_changed() -> None:
    now = float(MINUTE_S)
    counter = RefusalCounter(clock=lambda: now)
    for tenant in ("a", "a", "b"):
        counter.count(who(tenant), "concurrency", 429)
    counter.count(None, None, 401)
    first = [("a", "k", "concurrency", 429, 2), ("b", "k", "concurrency", 429, 1), ("", "", "invalid_request", 401, 1)]
    assert counter.take() == [RefusalCount(MINUTE_S, *each) for each in first]
    assert counter.take() == []
    now = MINUTE_S + 59.9
    counter.count(who("b"), "concurrency", 429)
    now = MINUTE_S + 60
    counter.count(who("b"), "concurrency", 429)
    # A clock that is set back changes no minute that has ended.
    now = MINUTE_S + 1
    counter.count(who("b"), "concurrency", 429)
    assert counter.take() == [
        RefusalCount(MINUTE_S, "b", "k", "concurrency", 429, 2),
        RefusalCount(MINUTE_S + 60, "b", "k", "concurrency", 429, 2),
    ]


def test_a_flood_of_keys_costs_no_memory_and_no_count() -> None:
    counter = RefusalCounter(clock=lambda: MINUTE_S)
    for i in range(MAX_KEYS + 50):
        counter.count(who("a", f"k{i}"), "concurrency", 429)
    taken = counter.take()
    assert len(taken) == MAX_KEYS + 1
    assert sum(each.count for each in taken) == MAX_KEYS + 50


async def test_refusals_arrive_once_however_often_they_are_told(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    now = float(MINUTE_S)
    counter = RefusalCounter(clock=lambda: now)
    async with Outbox(tmp_path, "g1", refusals=counter) as outbox:
        for _ in range(3):
            for _ in range(5):
                counter.count(who("a"), "concurrency", 429)
            outbox._counts_told_at = float("-inf")
            await outbox._tell_counts()
            copies = read_counts(tmp_path / "outbox" / "g1")
            Consumer(tmp_path, store).ship()
            # As if the consumer had died before it could delete them, and an older one were still at work.
            store.insert_counts(copies)
        counter.count(who("b"), "tokens_per_day", 429)
    Consumer(tmp_path, store).ship()
    assert not list((tmp_path / "outbox").glob("g1"))
    queries = UsageQueries(clickhouse_url)
    window = parse_window(str(MINUTE_S), str(MINUTE_S + 3600), now=utc_now())
    page = await queries.refusals(window, tenant_id=None, bucket="hour", limit=1)
    assert [(row["tenant_id"], row["limit"], row["status"], row["refusals"]) for row in page.rows] == [
        ("a", "concurrency", 429, 15)
    ]
    rest = await queries.refusals(window, tenant_id=None, bucket="hour", limit=1, after=page.next)
    assert [(row["tenant_id"], row["refusals"]) for row in rest.rows] == [("b", 1)] and rest.next is None
    only = await queries.refusals(window, tenant_id="b", bucket="minute")
    assert [row["tenant_id"] for row in only.rows] == ["b"]
    await queries.close()


async def test_admissions_and_closes_are_counted_whatever_becomes_of_a_request(tmp_path: Path) -> None:
    async with Outbox(tmp_path, "g1", max_under_way=3) as outbox:
        outbox.open(OpenEvent(make_event("quick")))
        await outbox.close(make_event("quick"))
        outbox.open(OpenEvent(make_event("noted")))
        outbox.open(OpenEvent(make_event("left")))
        outbox._note_in_time()
        await outbox.close(make_event("noted"))
        await outbox.close(make_event("noted", status="error"), is_correction=True)
        await outbox.close(make_event("refused-to-open"))
    hour_s = int(make_event("r").timestamp.timestamp()) // 3600 * 3600
    assert counted(tmp_path) == AdmissionCount(hour_s, "acme", 4, 3)
    # Whoever adopts the folder closes what was left.
    assert adopt_orphans(tmp_path) == 1
    assert counted(tmp_path) == AdmissionCount(hour_s, "acme", 4, 4)


def read_counts(folder: Path) -> list[GatewayCounts]:
    with closing(Journal.open(folder, must_exist=True)) as journal:
        return [decode_counts(record) for _, record in journal.read_counts()]


def counted(data_dir: Path) -> AdmissionCount:
    """As last told."""
    told: list[Any] = [each for counts in read_counts(data_dir / "outbox" / "g1") for each in counts.admissions]
    return cast(AdmissionCount, told[-1])
