"""What gateways, ClickHouse and workers counted, with real ones of each; and what is taken away by hand is named."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.billing.reconciliation import Reconciliation
from gateway.clock import utc_now
from gateway.metering.consumer import Consumer
from gateway.metering.folders import list_folders
from gateway.metering.rollups.keeper import RollupKeeper
from gateway.metering.schema import connect_migrated
from gateway.metering.store import UsageStore
from gateway.metering.windows import Window
from protocol.counts import AdmissionCount, GatewayCounts
from tests.support.events import make_event
from tests.support.gateways import (
    ADMIN_KEY,
    Gateway,
    declare,
    durable_events,
    eventually,
    make_settings,
    running_gateway,
)
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess
from tiergate.main import run

NUM_REQUESTS, NUM_TOKENS = 10, 20
BODY = {
    "model": "small",
    "messages": [{"role": "user", "content": "Hi!"}],
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
}


@pytest.fixture
async def gateway(
    tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess], clickhouse_url: str
) -> AsyncIterator[Gateway]:
    with closing(UsageStore(clickhouse_url)) as store:
        await asyncio.to_thread(store.prepare)
    async with running_gateway(make_settings(tmp_path, fleet_valkey.url, clickhouse_url=clickhouse_url)) as running:
        for worker in workers:
            await declare(running, worker.model_id, pool=worker.pool)
        fleet = running.services.registry
        await eventually(lambda: all(fleet.fleet.pools[worker.pool].members for worker in workers))
        yield running


async def send(gateway: Gateway, *, is_cached: bool = False) -> str:
    """NUM_REQUESTS of a new tenant, every other one streamed; its id. is_cached: the tenant has its answers kept."""
    key = await gateway.make_key()
    if is_cached:
        newest = (await gateway.admin.get("/tenants", params={"limit": 1000})).json()["data"][-1]
        policy = {"mode": "exact", "is_default": True, "takes_sampled": True}
        assert (await gateway.admin.patch(f"/tenants/{newest['id']}/cache", json=policy)).is_success
    async with gateway.client(key) as client:
        for i in range(NUM_REQUESTS):
            reply = await client.post("/chat/completions", json=BODY | {"stream": i % 2 == 0})
            assert reply.status_code == 200, reply.text
    events = durable_events(gateway)
    return events[-1].tenant_id


async def reconciled(gateway: Gateway, tenant_id: str, *, num_events: int = NUM_REQUESTS) -> Reconciliation:
    """Once all that was counted and closed has been shipped, and as if two hours had passed."""
    url = gateway.services.settings.clickhouse_url
    assert url is not None

    def ship() -> None:
        with closing(UsageStore(url)) as store, closing(RollupKeeper(url)) as keeper:
            Consumer(gateway.services.settings.data_dir, store).ship()
            keeper.sweep(now=utc_now())

    async with asyncio.timeout(60):
        while True:
            gateway.services.outbox._counts_told_at = float("-inf")
            await asyncio.to_thread(ship)
            now = utc_now() + timedelta(hours=2)
            found = await gateway.services.reconciler.reconcile(Window(now - timedelta(hours=4), now), now=now)
            mine = [each for each in found.events if each.tenant_id == tenant_id]
            sums = [sum(getattr(each, name) for each in mine) for name in ("num_admitted", "num_closed", "num_events")]
            if sums == [NUM_REQUESTS, NUM_REQUESTS, num_events]:
                return found
            await asyncio.sleep(0.1)


async def test_gateways_clickhouse_and_workers_count_the_same(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    tenant_id = await send(gateway)
    found = await reconciled(gateway, tenant_id)
    assert found.num_unreconciled_events == 0
    assert sum(each.num_closed for each in found.events) == NUM_REQUESTS
    assert sum(each.num_rolled_up for each in found.events) == NUM_REQUESTS
    mine = [each for each in found.tokens if each.tenant_id == tenant_id]
    assert sum(each.counted_tokens for each in mine) == NUM_REQUESTS * NUM_TOKENS
    assert all((each.num_missing, each.tolerance) == (0, 0) for each in mine)
    answer = (await gateway.admin.get("/reconciliation", params={"all": True})).raise_for_status().json()
    assert (answer["num_unreconciled_events"], answer["events"][0]["num_events"]) == (0, NUM_REQUESTS)
    command = ["reconcile", "--base-url", gateway.origin, "--admin-key", ADMIN_KEY]
    assert await asyncio.to_thread(run, command) == 0
    assert "events of settled hours that are not reconciled: 0" in capsys.readouterr().out


async def test_answers_from_the_cache_are_no_difference(gateway: Gateway) -> None:
    tenant_id = await send(gateway, is_cached=True)
    assert [event.cached_answer for event in durable_events(gateway)] == [False] * 2 + [True] * (NUM_REQUESTS - 2)
    found = await reconciled(gateway, tenant_id)
    assert found.num_unreconciled_events == 0
    mine = [each for each in found.tokens if each.tenant_id == tenant_id]
    assert sum(each.counted_tokens for each in mine) == 2 * NUM_TOKENS
    assert all(each.num_missing == 0 for each in mine)


async def test_rows_and_tokens_taken_from_clickhouse_are_named(gateway: Gateway, clickhouse_url: str) -> None:
    tenant_id = await send(gateway)
    await reconciled(gateway, tenant_id)
    with connect_migrated(clickhouse_url) as client:
        [gone, less] = [row[0] for row in client.query("SELECT request_id FROM usage_events LIMIT 2").result_rows]
        client.command(f"ALTER TABLE usage_events DELETE WHERE request_id = '{gone}' SETTINGS mutations_sync = 2")
    found = await reconciled(gateway, tenant_id, num_events=NUM_REQUESTS - 1)
    [missing] = [each for each in found.events if each.num_missing]
    assert (missing.tenant_id, missing.num_missing, found.num_unreconciled_events) == (tenant_id, 1, 1)
    assert abs((utc_now() - missing.hour).total_seconds()) < 2 * 3600
    assert differences(found, tenant_id) == [NUM_TOKENS]
    # One token in a hundred and more of what is left.
    with connect_migrated(clickhouse_url) as client:
        client.command(
            f"ALTER TABLE usage_events UPDATE completion_tokens = completion_tokens - 1 WHERE request_id = '{less}'"
            " SETTINGS mutations_sync = 2"
        )
    found = await reconciled(gateway, tenant_id, num_events=NUM_REQUESTS - 1)
    assert differences(found, tenant_id) == [NUM_TOKENS + 1]
    assert found.num_unreconciled_tokens >= NUM_TOKENS + 1


async def test_tokens_of_a_worker_that_was_asked_beside_another_are_no_difference(
    gateway: Gateway, clickhouse_url: str
) -> None:
    tenant_id = await send(gateway)
    await reconciled(gateway, tenant_id)
    with connect_migrated(clickhouse_url) as client:
        [[request_id]] = client.query("SELECT request_id FROM usage_events LIMIT 1").result_rows
        one = f"ALTER TABLE usage_events UPDATE {{}} WHERE request_id = '{request_id}'"
        # As if another worker had answered.
        client.command(one.format("worker_id = 'elsewhere'") + " SETTINGS mutations_sync = 2")
        assert differences(await reconciled(gateway, tenant_id), tenant_id) == [NUM_TOKENS]
        # And as if it had been asked because this one was late.
        both = 'num_attempts = 2, decision = replaceOne(decision, \'"tried":[\', \'"tried":["elsewhere",\')'
        client.command(one.format(both) + " SETTINGS mutations_sync = 2")
    assert differences(await reconciled(gateway, tenant_id), tenant_id) == []


async def test_an_event_taken_from_an_outbox_is_named(gateway: Gateway) -> None:
    tenant_id = await send(gateway)
    [folder] = list_folders(gateway.services.settings.data_dir)
    with closing(sqlite3.connect(folder / "events.sqlite", isolation_level=None)) as file:
        file.execute("DELETE FROM closed WHERE seq = (SELECT min(seq) FROM closed)")
    found = await reconciled(gateway, tenant_id, num_events=NUM_REQUESTS - 1)
    [missing] = [each for each in found.events if each.num_missing]
    assert (missing.tenant_id, missing.num_closed, missing.num_events) == (tenant_id, NUM_REQUESTS, NUM_REQUESTS - 1)
    assert differences(found, tenant_id) == [NUM_TOKENS]


async def test_events_of_a_tenant_that_does_not_exist_are_named(gateway: Gateway, clickhouse_url: str) -> None:
    at = utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    with closing(UsageStore(clickhouse_url)) as store:
        for tenant_id in ("nobody", str(uuid4())):
            store.insert([make_event(f"{tenant_id}-{i}", tenant_id=tenant_id, timestamp=at) for i in range(3)])
        # From when on gateways counted.
        store.insert_counts([GatewayCounts(gateway="g", admissions=(AdmissionCount(int(at.timestamp()), "x", 0, 0),))])
    found = await gateway.services.reconciler.reconcile(Window(at, utc_now()), now=utc_now() + timedelta(hours=2))
    unknown = [each for each in found.events if not each.is_known_tenant and each.num_events]
    assert [each.num_events for each in unknown] == [3, 3]
    assert found.num_unreconciled_events == 6


def differences(found: Reconciliation, tenant_id: str) -> list[int]:
    """The workers go on counting from test to test, tenants of others included."""
    return [each.num_missing for each in found.tokens if each.is_difference and each.tenant_id == tenant_id]
