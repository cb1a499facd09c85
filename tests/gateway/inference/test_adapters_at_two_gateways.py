"""Two gateways, processes of their own on one PostgreSQL and one Redis: what one is told about adapters, the other
serves, and neither ever goes back."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from migrations.run import migrate
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.gateway_processes import Processes, accepts, started
from tests.support.gateways import ADMIN_KEY, WORKER_KEY
from tests.support.postgres import find_binaries, running_postgres
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

BINARIES = find_binaries()
DEADLINE_S = 60
MODEL, POOL = "tiny-two", "two"
BODY = {"prompt": "The quick brown fox jumps over the lazy dog. " * 3, "max_tokens": 16, "temperature": 0}
MISSING = (404, "model_not_found")


@dataclass(frozen=True)
class Client:
    """Of one of the gateways."""

    admin: httpx.AsyncClient
    tenant: httpx.AsyncClient

    async def listed(self) -> list[str]:
        return [card["id"] for card in (await self.tenant.get("/models")).json()["data"]]

    async def ask(self, model: str) -> str | tuple[int, str]:
        """Its answer, or what it is refused with."""
        reply = await self.tenant.post("/completions", json={**BODY, "ignore_eos": True, "model": model})
        if reply.status_code != 200:
            return reply.status_code, reply.json()["error"]["code"]
        text: str = reply.json()["choices"][0]["text"]
        return text

    async def until_answered(self, model: str) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(answer := await self.ask(model), str):
                assert answer == MISSING, answer
                await asyncio.sleep(0.05)
        return answer


@dataclass
class Traffic:
    """All that a gateway says to one client that asks all the time, in order."""

    client: Client
    answers: list[str | tuple[int, str]] = field(default_factory=list)

    async def ask_until(self, is_last: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.answers or not is_last(self.answers[-1]):
                self.answers.append(await self.client.ask("voice"))

    def phases(self) -> list[str | tuple[int, str]]:
        """Without repetitions."""
        return [each for i, each in enumerate(self.answers) if i == 0 or each != self.answers[i - 1]]


def files(folder: Path) -> dict[str, Any]:
    return {
        "config": (CONFIG_FILE, (folder / CONFIG_FILE).read_bytes()),
        "weights": (WEIGHTS_FILE, (folder / WEIGHTS_FILE).read_bytes()),
    }


@asynccontextmanager
async def two_gateways(folder: Path, redis_url: str, database_url: str) -> AsyncIterator[list[Processes]]:
    variables = {
        "TIERGATE_DATABASE_URL": database_url,
        "TIERGATE_ARTIFACTS_URL": f"file://{folder / 'store'}",
        "TIERGATE_WORKER_KEY": WORKER_KEY,
    }
    async with AsyncExitStack() as stack:
        both = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            both.append(await stack.enter_async_context(started(folder / name, redis_url, **variables)))
        async with asyncio.timeout(DEADLINE_S):
            for each in both:
                while not await accepts(each.port):
                    assert each.parent.returncode is None, each.log
                    await asyncio.sleep(0.05)
        yield both


@asynccontextmanager
async def clients(gateways: list[Processes]) -> AsyncIterator[list[Client]]:
    """Of one tenant."""
    key = await gateways[0].make_key()
    async with AsyncExitStack() as stack:
        made = []
        for gateway in gateways:
            opened = [
                httpx.AsyncClient(base_url=f"{gateway.origin}{path}", headers={"Authorization": f"Bearer {secret}"})
                for path, secret in (("/admin/v1", ADMIN_KEY), ("/v1", key))
            ]
            for client in opened:
                client.timeout = httpx.Timeout(DEADLINE_S)
                await stack.enter_async_context(client)
            made.append(Client(*opened))
        yield made


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.skipif(
    BINARIES is None and "CI" not in os.environ, reason="PostgreSQL is not installed (apt-get install postgresql)"
)
async def test_uploads_replacements_and_deletions_reach_the_other_gateway_and_no_answer_mixes_versions(
    tmp_path: Path, fleet_valkey: ValkeyProcess
) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    checkpoint = make_tiny_checkpoint(tmp_path / "tiny", seed=7)
    first, second = [make_tiny_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (21, 22)]
    options = ("--artifacts-url", f"file://{tmp_path / 'store'}", "--artifacts-dir", str(tmp_path / "cache"))
    worker = WorkerProcess(tmp_path, pool=POOL, redis_url=fleet_valkey.url, seed=7, model=checkpoint, options=options)
    try:
        with running_postgres(BINARIES) as database_url:
            await asyncio.to_thread(migrate, database_url)
            await asyncio.to_thread(worker.wait_until_ready)
            async with (
                two_gateways(tmp_path, fleet_valkey.url, database_url) as gateways,
                clients(gateways) as (one, other),
            ):
                await declare(one)
                for client in (one, other):
                    await until(partial(serves, client))
                await play(one, other, first, second)
                await until(lambda: asyncio.to_thread(holds_none, worker))
    finally:
        worker.stop()


async def serves(client: Client) -> bool:
    """It knows the model and the worker."""
    return isinstance(await client.ask(MODEL), str)


async def declare(client: Client) -> None:
    for path, body in (
        ("/models", {"id": MODEL, "pool": POOL, "context_window": 512}),
        ("/prices", {"model_id": MODEL, "prompt_nanousd": 1, "completion_nanousd": 1}),
    ):
        reply = await client.admin.post(path, json=body)
        assert reply.status_code == 201, reply.text


async def play(one: Client, other: Client, first: Path, second: Path) -> None:
    """Upload at one, replace at the other, delete at one, and upload at the other again, beside traffic at both."""
    assert [await client.ask("voice") for client in (one, other)] == [MISSING, MISSING]
    made = await one.admin.post("/adapters", data={"name": "voice", "model": MODEL}, files=files(first))
    assert (made.status_code, made.json()["status"]) == (201, "ready"), made.text
    old = await one.ask("voice")
    assert isinstance(old, str) and "voice" in await one.listed()
    # The database knows at once: neither the name nor the object is free there.
    taken = await other.admin.post("/adapters", data={"name": "voice", "model": MODEL}, files=files(second))
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    assert (await other.admin.get(f"/adapters/{made.json()['id']}")).json() == made.json()
    assert await other.until_answered("voice") == old
    assert "voice" in await other.listed()

    traffic = [Traffic(client) for client in (one, one, other, other)]
    path = f"/adapters/{made.json()['id']}"
    async with asyncio.TaskGroup() as group:
        for each in traffic:
            group.create_task(each.ask_until(lambda answer: answer != old))
        await until(lambda: asyncio.sleep(0, all(each.answers for each in traffic)))
        replaced = await other.admin.put(f"{path}/variants/{MODEL}", files=files(second))
        assert replaced.status_code == 200, replaced.text
        new = await other.ask("voice")
    assert isinstance(new, str) and new != old
    # The old version, then the new one, and nothing else at any time; and so it stays.
    assert [each.phases() for each in traffic] == [[old, new]] * 4
    assert [await client.ask("voice") for client in (one, other)] == [new, new]

    traffic = [Traffic(client) for client in (one, one, other, other)]
    async with asyncio.TaskGroup() as group:
        for each in traffic:
            group.create_task(each.ask_until(lambda answer: answer != new))
        await until(lambda: asyncio.sleep(0, all(each.answers for each in traffic)))
        assert (await one.admin.delete(path)).status_code == 204
    assert [each.phases() for each in traffic] == [[new, MISSING]] * 4
    assert "voice" not in await one.listed() + await other.listed()
    again = await other.admin.post("/adapters", data={"name": "voice", "model": MODEL}, files=files(first))
    assert again.status_code == 201, again.text
    assert [await other.ask("voice"), await one.until_answered("voice")] == [old, old]
    assert (await one.admin.delete(f"/adapters/{again.json()['id']}")).status_code == 204


def holds_none(worker: WorkerProcess) -> bool:
    load: dict[str, Any] = worker.load()
    return not any(name.startswith("sha256:") for name in load["adapters"])
