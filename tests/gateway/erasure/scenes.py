"""A platform with everything real, tenants who leave their names everywhere, and a look into every store's bytes."""

import asyncio
import json
import subprocess
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from redis.asyncio import Redis
from sqlalchemy import select

from gateway.clock import utc_now
from gateway.database import Base, open_sessions
from gateway.erasure.outboxes import count_events
from gateway.metering.clickhouse import connect, database_of
from gateway.metering.consumer import Consumer
from gateway.metering.rollups.keeper import RollupKeeper
from gateway.metering.rounds import Rounds
from gateway.metering.store import UsageStore
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from tests.support.checkpoints import make_tiny_adapter
from tests.support.gateways import Gateway, declare, eventually, make_settings, running_gateway
from tests.support.workers import WorkerProcess

DEADLINE_S = 40
Json = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    gateway: Gateway
    worker: WorkerProcess
    folder: Path
    checkpoint: Path
    clickhouse_url: str
    database_url: str

    async def found(self, *words: str, redis: "Redis", logs: str = "") -> set[str]:
        """Where any of the words stands, in whatever case."""
        wanted = [word.lower().encode() for word in words]
        places = [
            *await self._database(),
            *await asyncio.to_thread(self._clickhouse),
            *await self._redis(redis),
            *await asyncio.to_thread(lambda: [*self._files()]),
            ("logs", logs.encode()),
        ]
        return {place for place, content in places if any(word in content.lower() for word in wanted)}

    async def _database(self) -> list[tuple[str, bytes]]:
        found = []
        async with open_sessions(self.database_url) as sessions, sessions() as session:
            for table in Base.metadata.sorted_tables:
                rows = (await session.execute(select(table))).all()
                found.append((f"table {table.name}", json.dumps([list(row) for row in rows], default=str).encode()))
        return found

    def _clickhouse(self) -> list[tuple[str, bytes]]:
        with connect(self.clickhouse_url, database=database_of(self.clickhouse_url)) as client:
            tables = [row[0] for row in client.query("SHOW TABLES").result_rows]
            return [(f"clickhouse {name}", client.raw_query(f"SELECT * FROM {name} FORMAT TSV")) for name in tables]

    async def _redis(self, redis: "Redis") -> list[tuple[str, bytes]]:
        keys = [key async for key in redis.scan_iter(count=1000)]
        return [(f"redis {key!r}", key + (await redis.dump(key) or b"")) for key in keys]

    def _files(self) -> Iterable[tuple[str, bytes]]:
        """The database's, outboxes', the object store's and the worker's, with their names."""
        for path in self.folder.rglob("*"):
            if path.is_file() and "postgres" not in path.parts:
                place = str(path.relative_to(self.folder))
                # By a process of its own: read here, SQLite's files would lose this process's locks.
                yield f"file {place}", place.encode() + subprocess.check_output(["cat", path])

    def totals(self) -> list[tuple[Any, ...]]:
        """What all tenants used, by events, hours and what was invoiced."""
        sums = "sum(cost_nanousd), sum(prompt_tokens), sum(completion_tokens)"
        with connect(self.clickhouse_url, database=database_of(self.clickhouse_url)) as client:
            return [
                client.query(query).result_rows[0]
                for query in (
                    f"SELECT count(), {sums} FROM usage_events FINAL",
                    f"SELECT {sums} FROM usage_hours FINAL",
                    "SELECT count(), sum(amount_nanousd) FROM invoiced_events",
                    "SELECT uniqExact(key_id), uniqExact(ifNull(user_id, '')) FROM usage_events FINAL",
                )
            ]


@asynccontextmanager
async def running_scene(
    folder: Path, *, redis_url: str, clickhouse_url: str, database_url: str, worker: WorkerProcess, checkpoint: Path
) -> AsyncIterator[Scene]:
    """With a consumer that ships what the gateway closes."""
    settings = make_settings(
        folder,
        redis_url,
        clickhouse_url=clickhouse_url,
        database_url=database_url,
        artifacts_url=str(folder / "store"),
    )
    url = settings.sql_url
    async with running_gateway(settings) as gateway:
        await declare(gateway, worker.model_id, pool=worker.pool)
        fleet = gateway.services.registry
        await eventually(lambda: worker.pool in fleet.fleet.pools and fleet.fleet.pools[worker.pool].members)
        await eventually(lambda: gateway.services.bundles.bundle_of(worker.pool))
        stop = threading.Event()
        with closing(UsageStore(clickhouse_url)) as store:
            await asyncio.to_thread(store.prepare)
            rounds = Rounds("ClickHouse")
            shipping = asyncio.create_task(asyncio.to_thread(Consumer(settings.data_dir, store).run, stop, rounds))
            try:
                yield Scene(gateway, worker, folder, checkpoint, clickhouse_url, url)
            finally:
                stop.set()
                await shipping


@dataclass(frozen=True)
class Customer:
    tenant_id: str
    key: str
    admin_key: str
    file_id: str
    invoice_id: str


async def make_customer(scene: Scene, name: str, *, users: tuple[str, ...]) -> Customer:
    """A tenant that has one of everything, with its name in it."""
    gateway = scene.gateway
    tenant_id = (await gateway.post("/tenants", {"name": f"{name} industries", "tier": "enterprise"}))["id"]
    owner = {"tenant_id": tenant_id}
    scopes = ["inference", "usage", "tenant-admin"]
    admin_key = (await gateway.post("/keys", {**owner, "name": f"{name} admin", "scopes": scopes}))["key"]
    key = (await gateway.post("/keys", {**owner, "name": f"{name} key"}))["key"]
    for user in users:
        await gateway.post("/users", {**owner, "user_id": user, "limits": {"tokens_per_day": 10**6}})
    await gateway.post("/webhooks", {**owner, "url": f"https://{name}.example.com/hook", "events": ["budget.80"]})
    tool = {"description": f"asks {name}", "url": f"https://{name}.example.com/tool", "parameters": {"type": "object"}}
    await gateway.post("/tools", {**owner, "name": f"{name}_tool", **tool})
    await gateway.admin.put(f"/billing-accounts/{tenant_id}", json={"recipient": f"{name}\n1 Road"})
    await gateway.post("/credits", {**owner, "amount_nanousd": 5, "note": f"{name} paid"})
    await _upload_adapter(scene, tenant_id, name)
    async with gateway.client(key) as client, gateway.client(admin_key) as admin:
        await admin.post(
            f"{gateway.origin}/dashboard/login", data={"key": admin_key}, headers={"origin": gateway.origin}
        )
        for user in users:
            await _use(client, name, user, model=scene.worker.model_id)
        file_id = await _run_batch(client, name, model=scene.worker.model_id)
    ended_at = utc_now()
    await eventually_shipped(scene, tenant_id)
    await asyncio.to_thread(sweep, scene.clickhouse_url)
    span = {"start": (ended_at - timedelta(hours=1)).isoformat(), "end": ended_at.isoformat()}
    invoice = await gateway.post("/invoices", {**owner, **span})
    final = await gateway.admin.post(f"/invoices/{invoice['id']}/finalize", json={})
    assert final.status_code == 200, final.text
    return Customer(tenant_id, key, admin_key, file_id, invoice["id"])


async def eventually_shipped(scene: Scene, tenant_id: str) -> None:
    async def is_shipped() -> bool:
        data_dir = scene.gateway.services.settings.data_dir
        waiting = await asyncio.to_thread(count_events, data_dir, tenant_id, None)
        return waiting == 0

    await until(is_shipped)


def sweep(clickhouse_url: str) -> None:
    with closing(RollupKeeper(clickhouse_url)) as keeper:
        keeper.sweep(now=utc_now())


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def finished(admin: httpx.AsyncClient, erasure_id: str) -> Json:
    found: list[Json] = []

    async def look() -> bool:
        found[:] = [(await admin.get(f"/erasures/{erasure_id}")).json()]
        return found[0]["status"] == "finished"

    try:
        await until(look)
    except TimeoutError:
        raise AssertionError(f"not finished: {found}") from None
    return found[0]


async def _use(client: httpx.AsyncClient, name: str, user: str, *, model: str) -> None:
    said = {"role": "user", "content": f"I am {name} and this is my secret."}
    asked = {"messages": [said], "max_tokens": 4, "user": user}
    headers = {"x-session-id": f"{user}-session", "idempotency-key": f"{user}-once", "x-client-request-id": f"{user}-1"}
    for chosen in (model, f"{name}-voice"):
        reply = await client.post("/chat/completions", json={**asked, "model": chosen}, headers=headers)
        assert reply.status_code == 200, reply.text
        headers = {"x-session-id": f"{user}-session"}
    kept = {"model": model, "input": f"{name} wrote this", "max_output_tokens": 4, "user": user}
    reply = await client.post("/responses", json={**kept, "metadata": {"of": name}})
    assert reply.status_code == 200, reply.text


async def _run_batch(client: httpx.AsyncClient, name: str, *, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": f"{name} in a batch"}], "max_tokens": 2}
    line = {"custom_id": f"{name}-line", "method": "POST", "url": "/v1/chat/completions", "body": body}
    form: Json = {"data": {"purpose": "batch"}, "files": {"file": (f"{name}.jsonl", json.dumps(line).encode())}}
    file_id: str = (await client.post("/files", **form)).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = (await client.post("/batches", json={**asked, "metadata": {"of": name}})).json()["id"]

    async def is_over() -> bool:
        return (await client.get(f"/batches/{batch_id}")).json()["status"] == "completed"

    await until(is_over)
    return file_id


async def _upload_adapter(scene: Scene, tenant_id: str, name: str) -> None:
    made = await asyncio.to_thread(
        make_tiny_adapter, scene.folder.parent / f"{scene.folder.name}-{name}", scene.checkpoint, seed=len(name)
    )
    files = {
        "config": (CONFIG_FILE, (made / CONFIG_FILE).read_bytes()),
        "weights": (WEIGHTS_FILE, (made / WEIGHTS_FILE).read_bytes()),
    }
    form = {"name": f"{name}-voice", "model": scene.worker.model_id, "tenant_id": tenant_id}
    reply = await scene.gateway.admin.post("/adapters", data=form, files=files)
    assert reply.status_code == 201, reply.text


def digests_in(folder: Path) -> set[str]:
    """Of adapters that lie below it, in the store or in a worker's cache."""
    return {path.parent.name for path in folder.rglob(WEIGHTS_FILE)}
