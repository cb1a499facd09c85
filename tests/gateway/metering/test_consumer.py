import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.metering.backlog import CACHE_S, Backlog, read_waiting
from gateway.metering.consumer import Consumer
from gateway.metering.consumer_metrics import ConsumerMetrics
from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.metering.outbox import Outbox
from gateway.metering.rounds import Rounds
from gateway.metering.schema import apply_migrations, connect_migrated
from gateway.metering.shipper import NothingTaken
from gateway.metering.store import EVENT_FIELDS, UsageStore
from protocol.usage import PriceLine, StepsMs, UsageEvent
from tests.support.clickhouse import start_clickhouse, url_at
from tests.support.events import make_event
from tests.support.gateways import make_settings, running_gateway
from tests.support.platform import clean_environment
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess

DEADLINE_S = 30


def fetch_events(url: str) -> list[UsageEvent]:
    with connect_migrated(url) as client:
        result = client.query(f"SELECT {', '.join(EVENT_FIELDS)} FROM usage_events FINAL ORDER BY request_id")
    return [msgspec.convert(row, UsageEvent) for row in result.named_results()]


async def close_events(data_dir: Path, *events: UsageEvent, incarnation: str = "one") -> None:
    async with Outbox(data_dir, incarnation) as outbox:
        await asyncio.gather(*(outbox.close(event) for event in events))


def wait_until(condition: Callable[[], object]) -> None:
    """Poll what another process does; raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


@contextmanager
def consumer_process(data_dir: Path, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    given = {"TIERGATE_DATA_DIR": str(data_dir), "TIERGATE_KEY_PEPPER": "p" * 16}
    environment = clean_environment() | given | ({"TIERGATE_CLICKHOUSE_URL": url} if url else {})
    with subprocess.Popen([sys.executable, "-m", "tiergate", "consumer"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_an_event_arrives_with_every_field(tmp_path: Path, store: UsageStore, clickhouse_url: str) -> None:
    paris = timezone(timedelta(hours=1))
    full = UsageEvent(
        request_id="r-full",
        client_request_id="c'1\n",
        worker_id="w1",
        tenant_id="tenant",
        key_id="key",
        user_id="us\\er",
        session_id="s1",
        model_version="m@2",
        pool="large",
        requested_model="auto",
        route_reason="complex",
        complexity=0.75,
        adapter_id="pirate",
        prompt_tokens=2**40,
        cached_prompt_tokens=16,
        completion_tokens=7,
        ttft_ms=12.5,
        total_latency_ms=99.25,
        queue_ms=1.5,
        worker_compute_ms=80.0,
        finish_reason="length",
        status="cancelled",
        tier="pro",
        price_version="3",
        cost_nanousd=2**50,
        timestamp=datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=paris),
        endpoint="/v1/completions",
        error_code="upstream_failed",
        error_message="it's \\ broken\n",
        num_attempts=300,
        steps_ms=StepsMs(authenticate=0.25, admit=0.5, queue=None, first_token=12.5, end=99.25),
        decision='{"reason":"complex","tried":["w0","w1"]}',
        price_lines=(
            PriceLine(kind="input", quantity=2**40, unit_price_nanousd=2**10, amount_nanousd=2**50),
            PriceLine(kind="output", quantity=7, unit_price_nanousd=10, amount_nanousd=70),
            PriceLine(kind="discount", quantity=1, unit_price_nanousd=-70, amount_nanousd=-70),
        ),
    )
    await close_events(tmp_path, full, make_event("r-bare", ttft_ms=None, user_id=None, finish_reason=None))
    assert Consumer(tmp_path, store).ship() == 2
    bare, arrived = fetch_events(clickhouse_url)
    assert arrived == full
    assert arrived.timestamp.astimezone(UTC).hour == 22
    assert bare == make_event("r-bare", ttft_ms=None, user_id=None, finish_reason=None)


async def test_an_event_of_version_1_arrives_and_one_of_an_unknown_version_is_set_aside(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    await close_events(tmp_path, make_event("r1", schema_version=1), make_event("r3", schema_version=3))
    Consumer(tmp_path, store).ship()
    assert fetch_events(clickhouse_url) == [make_event("r1", schema_version=1)]
    assert read_waiting(tmp_path).num_refused == 1


async def test_shipped_events_leave_the_outbox_and_the_dead_ones_folder_goes(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    consumer = Consumer(tmp_path, store, batch=10)
    await close_events(tmp_path, *(make_event(f"r{i}") for i in range(35)), incarnation="dead")
    async with Outbox(tmp_path, "alive") as outbox:
        await outbox.close(make_event("live"))
        assert consumer.ship() == 36
        assert [path.name for path in list_folders(tmp_path)] == ["alive"]
        assert consumer.ship() == 0
    assert len(fetch_events(clickhouse_url)) == 36


async def test_a_replayed_event_is_one_row(tmp_path: Path, store: UsageStore, clickhouse_url: str) -> None:
    for incarnation in ("one", "two"):
        await close_events(tmp_path, make_event("r1"), make_event("r2"), incarnation=incarnation)
        Consumer(tmp_path, store).ship()
    assert [event.request_id for event in fetch_events(clickhouse_url)] == ["r1", "r2"]


@pytest.mark.parametrize("order", [("ok", "error", "lost"), ("error", "ok"), ("lost", "error")])
async def test_of_several_verdicts_the_one_counts_that_the_client_was_told(
    tmp_path: Path, store: UsageStore, clickhouse_url: str, order: tuple[str, ...]
) -> None:
    for status in order:
        await close_events(tmp_path, make_event("r1", status=status), incarnation=status)
        Consumer(tmp_path, store).ship()
    assert [event.status for event in fetch_events(clickhouse_url)] == ["error"]


class Crash(BaseException):
    """The end of the process at a chosen point."""


class CrashingStore(UsageStore):
    """Dies right before or right after ClickHouse has the rows."""

    def __init__(self, url: str, *, after: bool) -> None:
        super().__init__(url)
        self._after = after

    def insert(self, events: Sequence[UsageEvent]) -> None:
        if self._after:
            super().insert(events)
        raise Crash


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("is_alive", [False, True])
async def test_a_crash_around_the_acknowledgement_neither_loses_nor_doubles(
    tmp_path: Path, store: UsageStore, clickhouse_url: str, *, after: bool, is_alive: bool
) -> None:
    async with AsyncExitStack() as stack:
        outbox = await stack.enter_async_context(Outbox(tmp_path, "one"))
        await outbox.close(make_event("r1"))
        if not is_alive:
            await stack.aclose()
        with closing(CrashingStore(clickhouse_url, after=after)) as crashing, pytest.raises(Crash):
            Consumer(tmp_path, crashing).ship()
        assert len(fetch_events(clickhouse_url)) == (1 if after else 0)
        assert Consumer(tmp_path, store).ship() == 1
        assert fetch_events(clickhouse_url) == [make_event("r1")]


@pytest.mark.parametrize("order", [("lost", "ok"), ("ok", "lost")])
async def test_a_final_verdict_counts_more_than_a_lost_one(
    tmp_path: Path, store: UsageStore, clickhouse_url: str, order: list[str]
) -> None:
    for status in order:
        store.insert([make_event("r1", status=status)])
    [event] = fetch_events(clickhouse_url)
    assert event.status == "ok"


def refused_rows(data_dir: Path) -> dict[str, str]:
    """Request id -> reason."""
    found = {}
    for folder in list_folders(data_dir):
        with closing(sqlite3.connect(folder / "events.sqlite")) as file:
            rows = file.execute("SELECT event, reason FROM refused").fetchall()
        found |= {msgspec.json.decode(event)["request_id"]: reason for event, reason in rows}
    return found


def refuse_many_tokens(url: str) -> None:
    with connect_migrated(url) as client:
        client.command("ALTER TABLE usage_events ADD CONSTRAINT few CHECK prompt_tokens < 1000")


async def test_rows_that_clickhouse_itself_refuses_are_set_aside_and_the_rest_passes(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    refuse_many_tokens(clickhouse_url)
    events = [make_event(f"r{i:02}", prompt_tokens=5000 if i in (0, 7, 8, 29) else 5) for i in range(30)]
    await close_events(tmp_path, *events)
    Consumer(tmp_path, store, batch=20).ship()
    assert len(fetch_events(clickhouse_url)) == 26
    refused = refused_rows(tmp_path)
    assert sorted(refused) == ["r00", "r07", "r08", "r29"]
    assert all("few" in reason for reason in refused.values())
    assert read_waiting(tmp_path).num_refused == 4


async def test_rows_that_clickhouse_refuses_are_shown_in_the_metrics_of_consumer_and_gateway(
    tmp_path: Path, store: UsageStore, clickhouse_url: str, valkey: ValkeyProcess
) -> None:
    refuse_many_tokens(clickhouse_url)
    settings = make_settings(tmp_path, valkey.url)
    numbers = (5, 5000, -1, 5, 6000)
    await close_events(settings.data_dir, *(make_event(f"r{i}", prompt_tokens=n) for i, n in enumerate(numbers)))
    metrics = ConsumerMetrics(Rounds("ClickHouse"))
    Consumer(settings.data_dir, store, on_landed=metrics.count).ship()
    refused = "tiergate_consumer_dead_letters_total"
    assert metrics.registry.get_sample_value(refused, {"reason": "refused_by_clickhouse"}) == 2
    assert metrics.registry.get_sample_value(refused, {"reason": "out_of_range"}) == 1
    assert metrics.registry.get_sample_value("tiergate_consumer_events_total") == 2
    async with running_gateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.origin) as client:
        shown = (await client.get("/metrics")).text.splitlines()
    assert "tiergate_usage_refused_rows 3.0" in shown


async def test_a_refused_row_without_proof_waits_and_holds_nobody_else_up(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    refuse_many_tokens(clickhouse_url)
    await close_events(tmp_path, make_event("bad", prompt_tokens=5000), incarnation="a")
    consumer = Consumer(tmp_path, store)
    with pytest.raises(NothingTaken, match="few"):
        consumer.ship()
    assert refused_rows(tmp_path) == {}
    await close_events(tmp_path, make_event("good"), incarnation="b")
    with pytest.raises(NothingTaken):
        consumer.ship()
    assert [event.request_id for event in fetch_events(clickhouse_url)] == ["good"]
    consumer.ship()
    assert list(refused_rows(tmp_path)) == ["bad"]


async def test_a_batch_that_is_refused_only_as_a_whole_arrives_in_parts(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    """ClickHouse takes rows of at most 100 months in one insert."""
    months = [datetime(2010 + i // 12, i % 12 + 1, 3, tzinfo=UTC) for i in range(130)]
    await close_events(tmp_path, *(make_event(f"r{i}", timestamp=month) for i, month in enumerate(months)))
    assert Consumer(tmp_path, store).ship() == 130
    assert len(fetch_events(clickhouse_url)) == 130
    assert list_folders(tmp_path) == []


@pytest.mark.parametrize("has_shipped", [False, True])
async def test_a_table_that_is_gone_sets_nothing_aside(
    tmp_path: Path, store: UsageStore, clickhouse_url: str, *, has_shipped: bool
) -> None:
    store.insert([make_event("r0")])
    consumer = Consumer(tmp_path, store)
    if has_shipped:
        await close_events(tmp_path, make_event("r1"))
        consumer.ship()
    await close_events(tmp_path, *(make_event(f"late-{i}") for i in range(20)))
    with connect_migrated(clickhouse_url) as client:
        client.command("RENAME TABLE usage_events TO away")
        with pytest.raises(NothingTaken):
            consumer.ship()
        client.command("RENAME TABLE away TO usage_events")
    assert refused_rows(tmp_path) == {}
    assert consumer.ship() == 20


async def test_what_the_first_version_set_aside_is_kept(tmp_path: Path) -> None:
    await close_events(tmp_path, make_event("r1"))
    [folder] = list_folders(tmp_path)
    with closing(sqlite3.connect(folder / "events.sqlite")) as file:
        file.executescript("""
            DROP TABLE refused;
            CREATE TABLE rejected (seq INTEGER PRIMARY KEY, event BLOB NOT NULL, reason TEXT NOT NULL);
            INSERT INTO rejected SELECT seq, event, 'prompt_tokens is -1' FROM closed;
        """)
    for _ in range(2):
        with closing(Journal.open(folder)) as journal:
            assert journal.count_refused() == 1
    assert refused_rows(tmp_path) == {"r1": "prompt_tokens is -1"}


async def test_what_waits_is_looked_up_in_all_outboxes_and_not_at_every_scrape(tmp_path: Path) -> None:
    now, noon = 0.0, datetime(2026, 3, 4, 12, tzinfo=UTC)
    backlog = Backlog(tmp_path, clock=lambda: now)
    assert (await backlog.read()).num_events == 0
    early = make_event("r1", timestamp=noon, total_latency_ms=2000.0)
    late, other = (make_event(each, timestamp=noon + timedelta(minutes=1)) for each in ("r2", "r3"))
    for incarnation, events in (("one", (late, early, other)), ("two", (early, late))):
        await close_events(tmp_path, *events, incarnation=incarnation)
        with closing(Journal.open(tmp_path / "outbox" / incarnation)) as journal:
            journal.refuse(1, "a reason")
    (tmp_path / "outbox" / "empty").mkdir()
    assert (await backlog.read()).num_events == 0
    now = CACHE_S
    waiting = await backlog.read()
    assert (waiting.num_events, waiting.num_refused) == (3, 2) and waiting.num_bytes > 0
    # From when it was closed, not from when it came.
    assert waiting.lag_s(noon + timedelta(seconds=9)) == 7.0


async def test_an_event_from_the_future_is_not_waited_for(tmp_path: Path) -> None:
    await close_events(tmp_path, make_event("r1", timestamp=datetime.now(UTC) + timedelta(days=1)))
    waiting = read_waiting(tmp_path)
    assert waiting.num_events == 1 and waiting.lag_s(datetime.now(UTC)) < DEADLINE_S


async def test_an_event_that_cannot_be_a_row_is_set_aside_and_the_rest_passes(
    tmp_path: Path, store: UsageStore, clickhouse_url: str
) -> None:
    await close_events(tmp_path, make_event("r1"), make_event("bad", prompt_tokens=-1), make_event("r2"))
    Consumer(tmp_path, store).ship()
    assert [event.request_id for event in fetch_events(clickhouse_url)] == ["r1", "r2"]
    [folder] = list_folders(tmp_path)
    with closing(Journal.open(folder, must_exist=True)) as journal:
        assert journal.count_closed() == 0 and not journal.is_empty()
    assert refused_rows(tmp_path) == {"bad": "out_of_range: prompt_tokens is -1"}


def test_migrations_are_recorded_and_may_run_again(clickhouse_url: str) -> None:
    with connect_migrated(clickhouse_url) as client:
        assert apply_migrations(client) == []
        client.command("TRUNCATE TABLE schema_migrations")
        assert apply_migrations(client)[:2] == ["0001_usage_events", "0002_event_version_2"]


async def test_usage_waits_while_clickhouse_is_away_and_arrives_when_it_returns(tmp_path: Path) -> None:
    port, stop = free_port(), threading.Event()
    url = url_at(port)
    store = UsageStore(url)
    consumer = Consumer(tmp_path, store)
    thread = threading.Thread(target=consumer.run, args=(stop, Rounds("ClickHouse")))
    thread.start()
    try:
        async with Outbox(tmp_path, "one") as outbox:
            for i in range(3):
                await outbox.close(make_event(f"early-{i}"))
            server = start_clickhouse(tmp_path / "clickhouse", port)
            await asyncio.to_thread(wait_until, lambda: len(fetch_events(url)) == 3)
            server.kill()
            for i in range(3):
                await outbox.close(make_event(f"late-{i}"))
            server = start_clickhouse(tmp_path / "clickhouse", port)
            await asyncio.to_thread(wait_until, lambda: len(fetch_events(url)) == 6)
            server.kill()
    finally:
        stop.set()
        thread.join()
        store.close()


GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.metering.outbox import Outbox
from tests.support.events import make_event

async def main():
    name = sys.argv[2]
    async with Outbox(Path(sys.argv[1]), name) as outbox:
        i = 0
        while True:
            i += 1
            outbox.open(make_event(f"{name}-{i}"))
            await outbox.close(make_event(f"{name}-{i}"))
            print(f"{name}-{i}", flush=True)

asyncio.run(main())
"""


@pytest.mark.long
def test_kill_9_of_every_process_in_turn_leaves_exactly_one_row_an_event(tmp_path: Path) -> None:
    port, data_dir = free_port(), tmp_path / "data"
    url = url_at(port)
    acknowledged: list[str] = []
    server = start_clickhouse(tmp_path / "clickhouse", port)
    for turn in range(3):
        command = [sys.executable, "-c", GATEWAY, str(data_dir), f"gateway{turn}"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway,
            consumer_process(data_dir, url) as consumer,
        ):
            assert gateway.stdout is not None
            acknowledged += [gateway.stdout.readline().strip() for _ in range(100)]
            wait_until(lambda: fetch_events(url))
            consumer.send_signal(signal.SIGKILL)
            acknowledged += [gateway.stdout.readline().strip() for _ in range(100)]
            server.kill()
            gateway.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in gateway.stdout if line.endswith("\n")]
            server = start_clickhouse(tmp_path / "clickhouse", port)
    with consumer_process(data_dir, url) as consumer:
        wait_until(lambda: not list_folders(data_dir))
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(timeout=DEADLINE_S) == 0
    counts = Counter(event.request_id for event in fetch_events(url))
    server.kill()
    assert set(acknowledged) <= set(counts)
    assert set(counts.values()) == {1}


def test_a_consumer_without_a_url_says_so(tmp_path: Path) -> None:
    with consumer_process(tmp_path, "") as process:
        assert process.wait(timeout=DEADLINE_S) == 2


def test_a_folder_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path, store: UsageStore) -> None:
    (tmp_path / "outbox" / "broken" / "owner.lock").mkdir(parents=True)
    asyncio.run(close_events(tmp_path, make_event("r1"), incarnation="fine"))
    consumer = Consumer(tmp_path, store)
    assert [consumer.ship() for _ in range(3)] == [1, 0, 0]
