"""An installation with objects of every kind, under load, and the answers of its APIs."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
from aiohttp import web

from gateway.metering.folders import list_folders
from gateway.metering.journal import JOURNAL_FILE, Journal
from gateway.metering.store import UsageStore
from protocol.ids import new_request_id
from tests.support.adapter_files import config_bytes, tensors, weights_bytes
from tests.support.batches import chat_line, ended, jsonl, start_batch
from tests.support.events import make_event
from tests.support.gateways import DEADLINE_S, Gateway, eventually, make_settings, running_gateway
from tests.support.platform import clean_environment
from tests.support.scripted_members import ScriptedMember

PEPPER = "pepper-of-the-tests"
MAY = datetime(2026, 5, 10, 12, tzinfo=UTC)
LISTS = (
    *("tenants", "users", "keys", "tiers", "models", "adapters", "tools", "webhooks", "invoices", "credits", "audit"),
    *("prices", "prices/surcharges", "prices/discounts"),
)
HELD = "answer this one later"


@dataclass
class Ended:
    code: int
    out: str
    err: str


async def tiergate(*arguments: str, env: Mapping[str, str], limit_kib: int | None = None) -> Ended:
    """Like `tests.support.cli.tiergate`, without blocking the event loop. limit_kib: the largest file it can write."""
    command = [sys.executable, "-m", "tiergate", *arguments]
    if limit_kib is not None:
        command = ["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "bash", *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**clean_environment(), **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 2 * DEADLINE_S)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def refused(*arguments: str, env: Mapping[str, str], limit_kib: int | None = None) -> str:
    """Run a command that must fail with one line on stderr, and return that line."""
    done = await tiergate(*arguments, env=env, limit_kib=limit_kib)
    assert done.code in (1, 2) and done.out == "", done
    assert done.err.count("\n") == 1 and done.err.startswith(f"tiergate {arguments[0]}: "), done.err
    return done.err


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    return {"TIERGATE_KEY_PEPPER": PEPPER, "TIERGATE_DATA_DIR": str(data_dir)} | variables


def leftovers(data_dir: Path) -> list[str]:
    """Files left by a failed restore, except its lock and an empty database."""
    found = [str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if path.is_file()]
    return sorted(
        name for name in found if name not in ("up.lock", "tiergate.db", "tiergate.db-shm", "tiergate.db-wal")
    )


@dataclass
class Furnished:
    """A gateway that has been used. `key` is the tenant's; `file_id` is the output of its batch."""

    gateway: Gateway
    tenant_id: str
    key: str
    batch_id: str
    file_id: str
    event_ids: list[str]
    """The request ids of the usage that was put into ClickHouse."""


async def furnish(gateway: Gateway, clickhouse_url: str) -> Furnished:
    await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
    tenant = (await gateway.post("/tenants", {"name": "Acme & Söhne", "tier": "pro"}))["id"]
    scopes = ["inference", "tenant-admin"]
    key = (await gateway.post("/keys", {"tenant_id": tenant, "name": "k", "scopes": scopes}))["key"]
    await gateway.post(
        "/keys", {"tenant_id": tenant, "name": "limited", "scopes": scopes, "limits": {"concurrency": 2}}
    )
    await gateway.post("/users", {"tenant_id": tenant, "user_id": "alice", "limits": {"tokens_per_day": 10**12}})
    await gateway.post("/prices/surcharges", {"model_id": "m", "token_nanousd": 7})
    await gateway.post("/prices/discounts", {"tier": "pro", "basis_points": 1500})
    await gateway.post("/credits", {"tenant_id": tenant, "amount_nanousd": 5 * 10**9, "note": "welcome"})
    await gateway.post("/webhooks", {"tenant_id": tenant, "url": "https://example.com/hook", "events": ["budget.80"]})
    tool = {
        "name": "clock",
        "description": "the time",
        "parameters": {"type": "object"},
        "url": "https://example.com/t",
    }
    await gateway.post("/tools", tool)
    for path, body in (
        ("/tiers/pro", {"requests_per_minute": None, "concurrency": 500}),
        (f"/tenants/{tenant}/sessions", {"is_encrypted": True}),
    ):
        assert (await gateway.admin.patch(path, json=body)).status_code == 200
    account = {
        "recipient": "Acme & Söhne\nKöln",
        "tax_basis_points": 1900,
        "tax_name": "MwSt",
        "time_zone": "Europe/Berlin",
    }
    assert (await gateway.admin.put(f"/billing-accounts/{tenant}", json=account)).status_code == 200
    files = {
        "config": ("adapter_config.json", config_bytes()),
        "weights": ("adapter_model.safetensors", weights_bytes(tensors(layers=8))),
    }
    reply = await gateway.admin.post("/adapters", data={"name": "voice", "model": "m"}, files=files)
    assert reply.status_code in (201, 202), reply.text
    event_ids = await asyncio.to_thread(_use, clickhouse_url, tenant)
    invoice = (await gateway.post("/invoices", {"tenant_id": tenant, "month": "2026-05"}))["id"]
    reply = await gateway.admin.post(f"/invoices/{invoice}/finalize")
    assert reply.status_code == 200, reply.text
    async with client_of(gateway, key) as client:
        batch_id = await start_batch(client, jsonl([chat_line(f"line {i}") for i in range(3)]))
        batch = await ended(client, batch_id)
    assert batch.status == "completed", batch
    return Furnished(gateway, tenant, key, batch_id, batch.output_file_id, event_ids)


def client_of(gateway: Gateway, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, timeout=DEADLINE_S)


async def answers(gateway: Gateway, scene: Furnished) -> dict[str, Any]:
    """The answers of every list of the admin API, of single resources of the tenant, and of the tenant's own API."""
    found: dict[str, Any] = {path: await _all(gateway, f"/{path}") for path in LISTS}
    for each in found["keys"]:
        # It changes from time to time, as long as the key is used.
        del each["last_used_at"]
    for path in (f"/tenants/{scene.tenant_id}/sessions", f"/billing-accounts/{scene.tenant_id}"):
        found[path] = (await gateway.admin.get(path)).raise_for_status().json()
    for invoice in found["invoices"]:
        found[f"invoice {invoice['id']}"] = (await gateway.admin.get(f"/invoices/{invoice['id']}")).json()
    for webhook in found["webhooks"]:
        # The secret is sealed under the pepper.
        reply = await gateway.admin.get(f"/webhooks/{webhook['id']}/secret")
        found[f"secret {webhook['id']}"] = reply.raise_for_status().json()
    async with client_of(gateway, scene.key) as client:
        found["files"] = [each.to_dict() async for each in client.files.list()]
        found["batches"] = [each.to_dict() async for each in client.batches.list()]
        found["output"] = (await client.files.content(scene.file_id)).text
    return found


async def _all(gateway: Gateway, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        reply = await gateway.admin.get(path, params={"limit": 100} | ({"after": after} if after else {}))
        page = reply.raise_for_status().json()
        rows += page["data"]
        after = page.get("next")
        if after is None:
            return rows


def _use(clickhouse_url: str, tenant_id: str) -> list[str]:
    """Put usage of May into ClickHouse; returns the request ids."""
    moments = [MAY + timedelta(seconds=second) for second in range(3)]
    events = [
        make_event(new_request_id(at), tenant_id=tenant_id, tier="pro", timestamp=at, model_version="m@1")
        for at in moments
    ]
    with closing(UsageStore(clickhouse_url)) as store:
        store.prepare()
        store.insert(events)
    return [event.request_id for event in events]


@dataclass
class Load:
    """A continuous load; one of its requests is answered only when the load ends."""

    answered: list[str] = field(default_factory=list)
    """Ids of requests that were answered completely, so that their events are durable."""
    is_over: bool = False
    release: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def installation(
    folder: Path, redis_url: str, clickhouse_url: str, member: ScriptedMember, *, database_url: str = ""
) -> AsyncIterator[Gateway]:
    """Runs a gateway with the data directory `gateway` in the folder; without `database_url`, on a new database."""
    settings = make_settings(
        folder, redis_url, pools=member.pools, clickhouse_url=clickhouse_url, database_url=database_url
    )
    async with running_gateway(settings) as gateway:
        await eventually(lambda: gateway.services.registry.fleet.pools["small"].members)
        yield gateway


@asynccontextmanager
async def loaded(scene: Furnished, member: ScriptedMember, *, num_clients: int = 4) -> AsyncIterator[Load]:
    load = Load()

    async def hold(request: web.Request) -> None:
        if HELD in await request.text():
            await load.release.wait()

    member.interrupt = hold
    async with asyncio.TaskGroup() as group, client_of(scene.gateway, scene.key) as client:
        tasks = [group.create_task(_ask(client, load, HELD, times=1))]
        tasks += [group.create_task(_ask(client, load, f"question of {number}")) for number in range(num_clients)]
        await eventually(lambda: len(load.answered) >= 20 and _num_under_way(scene.gateway) >= 1)
        try:
            yield load
        finally:
            load.is_over = True
            load.release.set()
            await asyncio.wait(tasks)


async def _ask(client: openai.AsyncOpenAI, load: Load, text: str, *, times: int | None = None) -> None:
    while not load.is_over and times != 0:
        reply = await client.chat.completions.with_raw_response.create(
            model="m", messages=[{"role": "user", "content": text}], max_tokens=8
        )
        load.answered.append(str(reply.headers["x-request-id"]))
        times = None if times is None else times - 1


def _num_under_way(gateway: Gateway) -> int:
    """The number of requests under way, as noted in the outboxes on disk."""
    found = 0
    for folder in list_folders(gateway.services.settings.data_dir):
        if (folder / JOURNAL_FILE).exists():
            with closing(Journal.open(folder, must_exist=True)) as journal:
                found += journal._connection.execute("SELECT count(*) FROM under_way").fetchone()[0]
    return found


def usage_rows(clickhouse_url: str) -> dict[str, tuple[str, int]]:
    """Request id -> (status, cost) of the billed rows. Asserts that no request occurs twice."""
    with closing(UsageStore(clickhouse_url)) as store:
        rows = store.select("SELECT request_id, status, cost_nanousd FROM usage_events FINAL", {})
    assert len({row[0] for row in rows}) == len(rows)
    return {str(row[0]): (str(row[1]), int(row[2])) for row in rows}
