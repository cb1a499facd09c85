"""The ledger: what waits in outboxes plus what is in ClickHouse; an error where it cannot read, never zero."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gateway.billing.ledger import UsageLedger
from gateway.limits.ledger import FAILED_S, FRESH_S, LedgerAway, Readings, Used
from gateway.limits.local import LocalLimiter
from gateway.metering.folders import OwnedFolder, create_folder
from gateway.metering.journal import JOURNAL_FILE, Journal, encode_event
from gateway.metering.queries import UsageQueries
from tests.support.clocks import Clock
from tests.support.events import make_event
from tests.support.limiters import KnownLedger, admission
from tests.support.tiers import make_tier

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)
TENANT = UUID(int=7)


async def at_once() -> None:
    """All is written."""


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[OwnedFolder]:
    folder = create_folder(tmp_path, "incarnation")
    Journal.open(folder.path).close()
    yield folder
    folder.release()


def put(folder: OwnedFolder, *events: bytes) -> None:
    with closing(Journal.open(folder.path)) as journal:
        journal.write(closed=events)


def event(*, tenant: UUID = TENANT, at: datetime = NOW, tokens: int = 10, cost: int = 100, key: str = "k") -> bytes:
    return encode_event(
        make_event(
            str(uuid4()),
            tenant_id=str(tenant),
            key_id=key,
            timestamp=at,
            prompt_tokens=tokens,
            completion_tokens=1,
            cost_nanousd=cost,
        )
    )


def ledger_of(folder: Path) -> UsageLedger:
    return UsageLedger(UsageQueries(None), data_dir=folder, has_clickhouse=False, written=at_once)


async def test_a_gateway_that_starts_does_not_make_the_usage_of_others_unknown(
    tmp_path: Path, outbox: OwnedFolder
) -> None:
    put(outbox, event(cost=100))
    ledger = ledger_of(tmp_path)
    is_over = threading.Event()

    def start_gateways() -> None:
        try:
            for number in range(60):
                Journal.open(create_folder(tmp_path, f"starting-{number}").path).close()
        finally:
            is_over.set()

    starting = threading.Thread(target=start_gateways)
    starting.start()
    try:
        while not is_over.is_set():
            assert (await ledger.used(TENANT, "tenant", NOW)).spent_this_month == 100
    finally:
        starting.join()


async def test_a_tenants_day_and_month_are_summed_over_the_outboxes(tmp_path: Path, outbox: OwnedFolder) -> None:
    midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    put(
        outbox,
        event(),
        event(at=midnight),
        event(at=midnight - timedelta(seconds=1)),
        event(at=NOW.replace(day=1) - timedelta(days=1)),
        event(tenant=uuid4()),
        event(key="other"),
    )
    ledger = ledger_of(tmp_path)
    assert await ledger.used(TENANT, "tenant", NOW) == Used(33, 400)
    assert await ledger.used(TENANT, "key:k", NOW) == Used(22, 300)
    assert await ledger.used(uuid4(), "tenant", NOW) == Used(0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness of each thread")
async def test_reading_outboxes_gives_way_to_requests(tmp_path: Path, outbox: OwnedFolder) -> None:
    put(outbox, event())
    await ledger_of(tmp_path).used(TENANT, "tenant", NOW)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    readers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("ledger")]
    assert readers
    assert all(os.getpriority(os.PRIO_PROCESS, reader) > own for reader in readers if reader is not None)


async def test_a_pools_account_is_what_everybody_spent_there(tmp_path: Path, outbox: OwnedFolder) -> None:
    account = uuid4()
    there = [
        make_event(str(uuid4()), tenant_id=tenant, pool="p.overflow", timestamp=NOW, cost_nanousd=30) for tenant in "ab"
    ]
    put(outbox, *map(encode_event, there), event())
    ledger = UsageLedger(
        UsageQueries(None), data_dir=tmp_path, has_clickhouse=False, written=at_once, pools={account: "p.overflow"}
    )
    assert (await ledger.used(account, "tenant", NOW)).spent_this_month == 60


async def test_an_outbox_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, outbox: OwnedFolder) -> None:
    put(outbox, event())
    (outbox.path / JOURNAL_FILE).write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerAway):
        await ledger_of(tmp_path).used(TENANT, "tenant", NOW)


async def test_an_outbox_whose_table_is_locked_or_missing_is_not_an_empty_one(
    tmp_path: Path, outbox: OwnedFolder
) -> None:
    put(outbox, event())
    with closing(sqlite3.connect(outbox.path / JOURNAL_FILE)) as connection:
        connection.execute("DROP TABLE closed")
    with pytest.raises(LedgerAway):
        await ledger_of(tmp_path).used(TENANT, "tenant", NOW)


async def test_a_folder_that_is_still_empty_or_gone_counts_nothing(tmp_path: Path, outbox: OwnedFolder) -> None:
    put(outbox, event())
    (tmp_path / "outbox" / "just-starting").mkdir()
    assert await ledger_of(tmp_path).used(TENANT, "tenant", NOW) == Used(11, 100)


async def test_reading_does_not_write(tmp_path: Path, outbox: OwnedFolder) -> None:
    """Least of all does it set aside what is no event: that is the consumer's."""
    put(outbox, event())
    path = outbox.path / JOURNAL_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO closed (event) VALUES (?)", (b"no event",))
    before = path.read_bytes()
    assert await ledger_of(tmp_path).used(TENANT, "tenant", NOW) == Used(11, 100)
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM closed").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM refused").fetchone() == (0,)


async def test_a_writer_is_not_held_up(tmp_path: Path, outbox: OwnedFolder) -> None:
    put(outbox, event())
    with closing(sqlite3.connect(outbox.path / JOURNAL_FILE, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM closed")
        assert await ledger_of(tmp_path).used(TENANT, "tenant", NOW) == Used(11, 100)
        writer.execute("COMMIT")
    assert await ledger_of(tmp_path).used(TENANT, "tenant", NOW) == Used(0, 0)


async def test_clickhouse_that_cannot_be_asked_is_an_error(tmp_path: Path) -> None:
    queries = UsageQueries("http://127.0.0.1:1/tiergate")
    with pytest.raises(LedgerAway):
        await UsageLedger(queries, data_dir=tmp_path, has_clickhouse=True, written=at_once).used(TENANT, "tenant", NOW)
    await queries.close()


class SlowLedger(KnownLedger):
    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        await asyncio.sleep(0.05)
        return await super().used(tenant_id, scope, now)


async def test_concurrent_askers_share_a_reading_that_is_kept_for_seconds() -> None:
    clock, ledger = Clock(), SlowLedger(tokens=5)
    local, readings = LocalLimiter(incarnation="i", window_s=60, clock=clock), Readings(ledger, clock=clock)
    [account] = local.accounts_of(admission(TENANT, make_tier()))
    found = await asyncio.gather(*(readings.get(TENANT, "tenant", account, NOW) for _ in range(50)))
    assert {reading.tokens_today for reading in found} == {5}
    assert ledger.num_calls == 1
    clock.now += FRESH_S - 0.1
    await readings.get(TENANT, "tenant", account, NOW)
    assert ledger.num_calls == 1
    clock.now += 0.2
    await readings.get(TENANT, "tenant", account, NOW, patience_s=20)
    assert ledger.num_calls == 2
    await readings.get(TENANT, "tenant", account, NOW + timedelta(days=1))
    assert ledger.num_calls == 3


async def test_the_last_reading_stands_while_the_ledger_is_away_and_no_asker_is_cancelled_with_another() -> None:
    clock, ledger = Clock(), SlowLedger(tokens=5)
    local, readings = LocalLimiter(incarnation="i", window_s=60, clock=clock), Readings(ledger, clock=clock)
    [account] = local.accounts_of(admission(TENANT, make_tier()))
    first, second = (asyncio.ensure_future(readings.get(TENANT, "tenant", account, NOW)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).tokens_today == 5
    ledger.is_away = True
    clock.now += FRESH_S + 1
    assert (await readings.get(TENANT, "tenant", account, NOW)).tokens_today == 5
    clock.now += 100
    num_calls = ledger.num_calls
    for _ in range(20):
        with pytest.raises(LedgerAway):
            await readings.get(TENANT, "tenant", account, NOW)
    assert ledger.num_calls == num_calls + 1
    clock.now += FAILED_S
    ledger.is_away = False
    assert (await readings.get(TENANT, "tenant", account, NOW)).tokens_today == 5
