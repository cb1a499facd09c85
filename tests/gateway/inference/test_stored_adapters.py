"""Adapters that tenants upload, through a real gateway, a store that speaks S3 and a real worker that fetches them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.clock import utc_now
from gateway.domain.adapters.upkeep import remove_unused
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE, object_path
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.gateways import Gateway, declare, durable_events, eventually, make_settings, running_gateway
from tests.support.object_stores import S3Server, running_s3
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

PROMPT = "The quick brown fox jumps over the lazy dog. What is the capital of France? " * 2
BODY = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.make_bucket()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("stored") / "tiny", seed=7)


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, fleet_valkey: ValkeyProcess, checkpoint: Path, bucket: str
) -> Iterator[WorkerProcess]:
    """It has an adapter `pirate` of its own, of seed 8."""
    folder = tmp_path_factory.mktemp("worker")
    options = ("--artifacts-url", f"s3://{bucket}/adapters", "--artifacts-dir", str(folder / "cache"))
    started = WorkerProcess(
        folder, pool="stored", redis_url=fleet_valkey.url, seed=7, model=checkpoint, options=options
    )
    started.wait_until_ready()
    yield started
    started.stop()


@pytest.fixture
async def gateway(
    tmp_path: Path, fleet_valkey: ValkeyProcess, worker: WorkerProcess, bucket: str
) -> AsyncIterator[Gateway]:
    settings = make_settings(tmp_path, fleet_valkey.url, artifacts_url=f"s3://{bucket}/adapters")
    async with running_gateway(settings) as running:
        await declare(running, worker.model_id, pool=worker.pool)
        fleet = running.services.registry
        await eventually(lambda: worker.pool in fleet.fleet.pools and fleet.fleet.pools[worker.pool].members)
        yield running


def files(folder: Path) -> dict[str, Any]:
    return {
        "config": (CONFIG_FILE, (folder / CONFIG_FILE).read_bytes()),
        "weights": (WEIGHTS_FILE, (folder / WEIGHTS_FILE).read_bytes()),
    }


async def upload(gateway: Gateway, folder: Path, **fields: str) -> dict[str, Any]:
    given = {"name": "voice", "model": "tiny-stored", **fields}
    reply = await gateway.admin.post("/adapters", data=given, files=files(folder))
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


async def replace(gateway: Gateway, adapter_id: str, folder: Path) -> None:
    reply = await gateway.admin.put(f"/adapters/{adapter_id}/variants/tiny-stored", files=files(folder))
    assert reply.status_code == 200, reply.text


async def complete(client: httpx.AsyncClient, model: str, **fields: Any) -> str:
    reply = await client.post("/completions", json={**BODY, "model": model, **fields})
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def stored_at(worker: WorkerProcess) -> list[str]:
    adapters: list[str] = worker.load()["adapters"]  # type: ignore[assignment]
    return [name for name in adapters if name.startswith("sha256:")]


async def test_an_upload_is_used_under_its_name_at_once_and_is_its_owners_alone(
    gateway: Gateway, worker: WorkerProcess, checkpoint: Path, tmp_path: Path
) -> None:
    folder = make_tiny_adapter(tmp_path / "a", checkpoint, seed=8)
    owner, other = [await gateway.post("/tenants", {"name": name, "tier": "enterprise"}) for name in ("own", "other")]
    keys = [
        (await gateway.post("/keys", {"tenant_id": each["id"], "name": "k", "scopes": ["inference"]}))["key"]
        for each in (owner, other)
    ]
    await gateway.post("/adapters", {"name": "pirate", "variants": {"tiny-stored": "pirate"}})
    made = await upload(gateway, folder, tenant_id=owner["id"])
    assert made["status"] == "ready"
    surcharge = {"model_id": "tiny-stored", "adapter_id": made["id"], "token_nanousd": 1000}
    await gateway.post("/prices/surcharges", surcharge)
    async with gateway.client(keys[0]) as client, gateway.client(keys[1]) as stranger:
        text = await complete(client, "voice")
        assert text == await complete(client, "pirate") != await complete(client, "tiny-stored")
        listed = [card["id"] for card in (await client.get("/models")).json()["data"]]
        hidden = [card["id"] for card in (await stranger.get("/models")).json()["data"]]
        refused = await stranger.post("/completions", json={**BODY, "model": "voice"})
    assert "voice" in listed and "voice" not in hidden
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    await eventually(lambda: len(durable_events(gateway)) == 3)
    costs = {event.requested_model: event for event in durable_events(gateway)}
    voice, pirate = costs["voice"], costs["pirate"]
    assert voice.adapter_id == made["id"]
    num_tokens = voice.prompt_tokens + voice.completion_tokens
    assert voice.cost_nanousd - pirate.cost_nanousd >= 1000 * num_tokens - 100 * voice.prompt_tokens
    await gateway.admin.delete(f"/adapters/{made['id']}")
    await eventually(lambda: stored_at(worker) == [])


async def test_what_does_not_fit_the_base_model_is_refused_and_nothing_stays(
    gateway: Gateway, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    before = s3.keys(bucket)
    wide = make_tiny_checkpoint(tmp_path / "wide", hidden_size=128)
    deep = make_tiny_checkpoint(tmp_path / "deep", num_layers=3)
    for base, reason in ((wide, "64 x 64"), (deep, "tensor for layer 2")):
        folder = make_tiny_adapter(tmp_path / f"for-{base.name}", base)
        reply = await gateway.admin.post(
            "/adapters", data={"name": "voice", "model": "tiny-stored"}, files=files(folder)
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_adapter")
        assert reason in reply.json()["error"]["message"]
    assert s3.keys(bucket) == before
    assert (await gateway.admin.get("/adapters")).json()["data"] == []


async def test_a_source_in_s3_is_taken_below_the_operators_root(
    gateway: Gateway, s3: S3Server, bucket: str, checkpoint: Path, tmp_path: Path
) -> None:
    folder = make_tiny_adapter(tmp_path / "a", checkpoint, seed=8)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        s3.client.put_object(Bucket=bucket, Key=f"trained/run-1/{name}", Body=(folder / name).read_bytes())
    settings = make_settings(
        tmp_path / "second",
        gateway.services.settings.redis_url,
        artifacts_url=f"s3://{bucket}/adapters",
        adapter_roots=(f"s3://{bucket}/trained",),
    )
    async with running_gateway(settings) as running:
        await declare(running, "tiny-stored", pool="stored")
        source = {"name": "voice", "model": "tiny-stored", "source": f"s3://{bucket}/trained/run-1"}
        made = await running.post("/adapters", source)
        missing = await running.admin.post("/adapters", json={**source, "name": "v", "source": f"{source['source']}0"})
        uploaded = await upload(running, folder, name="uploaded")
    assert made["variants"] == uploaded["variants"]
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "source")


@dataclass
class Traffic:
    """Clients that ask for `voice` all the time, whole answers and streams; what they are told, and what went wrong."""

    texts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    async def ask_forever(self, client: httpx.AsyncClient, *, stream: bool) -> None:
        while not self.is_over:
            body = {**BODY, "model": "voice", "stream": stream}
            async with client.stream("POST", "/completions", json=body) as reply:
                content = await reply.aread()
            if reply.status_code != 200 or b'"error"' in content:
                self.failures.append(f"{reply.status_code} {content[-500:]!r}")
            else:
                self.texts.append(_streamed(content) if stream else json.loads(content)["choices"][0]["text"])

    async def more(self, num: int) -> None:
        goal = len(self.texts) + len(self.failures) + num
        await eventually(lambda: len(self.texts) + len(self.failures) >= goal)


def _streamed(content: bytes) -> str:
    events = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


async def test_replaced_again_and_again_in_mid_traffic_nobody_fails_and_nobody_gets_a_mixture(
    gateway: Gateway, worker: WorkerProcess, checkpoint: Path, tmp_path: Path
) -> None:
    folders = [make_tiny_adapter(tmp_path / f"{seed}", checkpoint, seed=seed) for seed in (8, 21, 22, 23)]
    made = await upload(gateway, folders[0])
    alone: list[str] = []
    async with gateway.client(await gateway.make_key()) as client:
        for folder in folders:
            await replace(gateway, made["id"], folder)
            alone.append(await complete(client, "voice"))
        assert len(set(alone)) == len(folders)
        traffic = Traffic()
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(traffic.ask_forever(client, stream=number % 2 == 0))
            for turn in range(8):
                await traffic.more(8)
                await replace(gateway, made["id"], folders[turn % len(folders)])
            await traffic.more(8)
            # Only what is asked for after the change is surely of the new version.
            assert await complete(client, "voice") == alone[7 % len(folders)]
            traffic.is_over = True
    assert traffic.failures == []
    assert set(traffic.texts) == set(alone)
    # Old versions leave the worker; the current one stays.
    shown = (await gateway.admin.get(f"/adapters/{made['id']}")).json()
    assert shown["details"]["tiny-stored"]["version"] == 1 + len(folders) + 8
    current = shown["variants"]["tiny-stored"]
    await eventually(lambda: stored_at(worker) == [current])
    await gateway.admin.delete(f"/adapters/{made['id']}")
    await eventually(lambda: stored_at(worker) == [])


async def test_deleted_and_uploaded_again_in_mid_traffic_what_was_accepted_is_answered(
    gateway: Gateway, worker: WorkerProcess, s3: S3Server, bucket: str, checkpoint: Path, tmp_path: Path
) -> None:
    old, new = [make_tiny_adapter(tmp_path / f"{seed}", checkpoint, seed=seed) for seed in (31, 32)]
    made = await upload(gateway, old)
    async with gateway.client(await gateway.make_key()) as client:
        expected = await complete(client, "voice", max_tokens=200)
        under_way = [asyncio.create_task(complete(client, "voice", max_tokens=200)) for _ in range(6)]
        await eventually(lambda: worker.load()["num_running"] + worker.load()["num_waiting"] > 0)
        assert (await gateway.admin.delete(f"/adapters/{made['id']}")).status_code == 204
        refused = await client.post("/completions", json={**BODY, "model": "voice"})
        again = await upload(gateway, new)
        other = await complete(client, "voice", max_tokens=200)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert set(await asyncio.gather(*under_way)) == {expected} != {other}
    await gateway.admin.delete(f"/adapters/{again['id']}")
    await eventually(lambda: stored_at(worker) == [])
    services = gateway.services
    later = utc_now() + timedelta(seconds=1)
    assert await remove_unused(services.sessions, services.artifacts, now=later, kept_for=timedelta(hours=1)) == 0
    await remove_unused(services.sessions, services.artifacts, now=later + timedelta(seconds=1), kept_for=timedelta(0))
    kept = {key.split("/")[2] for key in s3.keys(bucket) if key.startswith("adapters/adapters/")}
    assert not kept & {name.removeprefix("sha256:") for each in (made, again) for name in each["variants"].values()}


async def test_what_the_store_lost_or_has_wrong_fails_its_own_requests_with_the_reason_and_disturbs_nobody(
    gateway: Gateway, worker: WorkerProcess, s3: S3Server, bucket: str, checkpoint: Path, tmp_path: Path
) -> None:
    lost, wrong, sound = [
        await upload(gateway, make_tiny_adapter(tmp_path / f"{seed}", checkpoint, seed=seed), name=f"voice-{seed}")
        for seed in (41, 42, 43)
    ]
    digests = [made["details"]["tiny-stored"]["digest"] for made in (lost, wrong)]
    lost_key, wrong_key = [f"adapters/{object_path(digest, WEIGHTS_FILE)}" for digest in digests]
    s3.client.delete_object(Bucket=bucket, Key=lost_key)
    s3.client.put_object(Bucket=bucket, Key=wrong_key, Body=b"something else")
    async with gateway.client(await gateway.make_key()) as client:
        expected = await complete(client, "tiny-stored")
        for _ in range(8):
            replies = await asyncio.gather(
                client.post("/completions", json={**BODY, "model": "voice-41"}),
                client.post("/completions", json={**BODY, "model": "voice-42", "stream": True}),
                client.post("/completions", json={**BODY, "model": "tiny-stored"}),
            )
            assert [reply.status_code for reply in replies] == [503, 400, 200], [reply.text for reply in replies]
        assert replies[1].json()["error"]["code"] == "adapter_failed"
        assert "another content" in replies[1].json()["error"]["message"]
        assert await complete(client, "tiny-stored") == expected
        assert await complete(client, "voice-43") != expected
    [shown] = [row for row in (await gateway.admin.get("/workers")).json()["data"] if row["pool"] == "stored"]
    assert (shown["is_healthy"], shown["state"]) == (True, "closed")
    for made in (lost, wrong, sound):
        await gateway.admin.delete(f"/adapters/{made['id']}")
