"""Killed gateways give nothing away: what a request had used stays counted as it is billed, and its place is freed."""

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from protocol.usage import UsageEvent
from tests.gateway.processes.test_processes import FIRST, serving_streams
from tests.support.gateway_processes import DEADLINE_S, Processes, kill, stream, until_dead
from tests.support.gateways import ADMIN_KEY
from tests.support.valkey import ValkeyProcess

NOTE_S = 0.5
"""Ten times what the outbox needs to note a request."""


@pytest.mark.long
@pytest.mark.parametrize("after_s", [NOTE_S, 0.0])
async def test_requests_of_killed_gateways_count_as_they_are_billed(
    tmp_path: Path, valkey: ValkeyProcess, after_s: float
) -> None:
    """Those that are killed at once may leave no event. Then nothing is billed, and nothing stays counted."""
    async with serving_streams(tmp_path, valkey, asyncio.Event()) as processes:
        key = await make_limited_key(processes)
        # Their successors know the price from the start.
        await kill_all(processes)
        for num_killed in range(1, 4):
            events = stream(processes, key, max_tokens=300)
            assert await anext(events) == FIRST
            if after_s:
                await asyncio.sleep(after_s)
                assert (await used(processes, key))["concurrency"] == 1
            await kill_all(processes)
            with pytest.raises(httpx.HTTPError):
                await anext(events)
            async with asyncio.timeout(DEADLINE_S):
                while (now := await used(processes, key))["concurrency"] or now["tokens_per_day"] != tokens(processes):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            lost = billed(processes)
            assert len(lost) == num_killed or (not after_s and len(lost) < num_killed)
            assert {event.status for event in lost} <= {"lost"}
            assert now["tokens_per_day"] < 300
            assert now["budget"] == sum(event.cost_nanousd for event in lost)
            assert now["budget"] > 0 or not lost


async def kill_all(processes: Processes) -> None:
    """Returns when all have successors that serve."""
    former = processes.children()
    for child in former:
        kill(child)
    await until_dead(former)
    await processes.until_all_serve(2)


async def make_limited_key(processes: Processes) -> str:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(
        base_url=f"{processes.origin}/admin/v1", headers=headers, timeout=DEADLINE_S
    ) as client:

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            reply = await client.post(path, json=body)
            assert reply.status_code == 201, reply.text
            return dict(reply.json())

        await post("/models", {"id": "m", "pool": "small", "context_window": 512})
        await post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
        limits = {"concurrency": 1, "tokens_per_day": 1000, "budget_nanousd_per_month": 1_000_000}
        tenant = await post("/tenants", {"name": f"tenant-{uuid4().hex[:12]}", "tier": "enterprise", "limits": limits})
        key = await post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference", "usage"]})
    return str(key["key"])


async def used(processes: Processes, key: str) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        reply = await client.get(f"{processes.origin}/v1/limits", headers=headers)
    assert reply.status_code == 200, reply.text
    return {view["name"]: view["used"] for view in reply.json()["limits"] if view["scope"] == "tenant"}


def billed(processes: Processes) -> list[UsageEvent]:
    found = []
    for folder in list_folders(processes.folder / "data"):
        journal = Journal.open(folder, must_exist=True)
        found += [closed.event for closed in journal.read_closed(1000)]
        journal.close()
    return found


def tokens(processes: Processes) -> int:
    return sum(event.prompt_tokens + event.completion_tokens for event in billed(processes))


async def test_a_child_ends_with_its_parent_before_it_has_loaded_anything() -> None:
    """The parent dies while its child starts: nobody may hold its port."""
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    parent = f"""
import asyncio, sys
from gateway.processes.child import Child

async def main():
    await Child.start([sys.executable, "-c", {child!r}], number=0, slot=0, listeners=[])
    await asyncio.Event().wait()

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    started = int(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S))
    process.kill()
    await process.wait()
    await until_dead({started})
