"""Erasures go on after crashes and outages, and tell what they wait for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from gateway.domain.erasures.models import Erasure
from gateway.erasure.job import STEPS
from tests.gateway.erasure.scenes import finished, until
from tests.support.clickhouse import start_clickhouse
from tests.support.gateway_processes import accepts, kill, serving, started, until_dead
from tests.support.gateways import ADMIN_KEY, Gateway, copy_database, make_settings, running_gateway
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def redis_server(tmp_path: Path) -> AsyncIterator[ValkeyProcess]:
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()


async def make_tenant(gateway: Gateway) -> str:
    tenant_id = str((await gateway.post("/tenants", {"name": "zyxomma", "tier": "free"}))["id"])
    await gateway.post("/keys", {"tenant_id": tenant_id, "name": "zyxomma key"})
    return tenant_id


@pytest.mark.long
async def test_a_store_that_is_away_is_told_and_waited_for(tmp_path: Path, redis_server: ValkeyProcess) -> None:
    port = free_port()
    database = tmp_path / "tiergate.db"
    await asyncio.to_thread(copy_database, database)
    settings = make_settings(
        tmp_path,
        redis_server.url,
        clickhouse_url=f"http://tiergate:x@127.0.0.1:{port}/t",
        database_url=f"sqlite:///{database}",
    )
    async with running_gateway(settings) as gateway:
        made = await gateway.admin.post("/erasures", json={"tenant_id": await make_tenant(gateway)})
        erasure_id = made.json()["id"]

        async def waits_for_clickhouse() -> bool:
            erasure = (await gateway.admin.get(f"/erasures/{erasure_id}")).json()
            return (erasure["waits_for"] or "").startswith("clickhouse: ")

        await until(waits_for_clickhouse)
        unfinished = await gateway.admin.post(f"/erasures/{erasure_id}/verification", json={})
        assert unfinished.status_code == 409

    # Another process goes on where the first one was.
    clickhouse = await asyncio.to_thread(start_clickhouse, tmp_path / "clickhouse", port)
    try:
        async with running_gateway(settings.model_copy(update={"clickhouse_url": f"{clickhouse.url}/t"})) as gateway:
            erasure = await finished(gateway.admin, erasure_id)
            assert [step["name"] for step in erasure["steps"]] == list(STEPS)
            found = await gateway.admin.post(f"/erasures/{erasure_id}/verification", json={"words": ["zyxomma"]})
            assert found.json()["is_clean"], found.text
            # A report that somebody has changed is told.
            async with gateway.services.sessions.begin() as session:
                row = await session.get(Erasure, UUID(erasure_id))
                assert row is not None
                row.steps = row.steps[1:]
            changed = (await gateway.admin.post(f"/erasures/{erasure_id}/verification", json={})).json()
            assert (changed["is_report_sealed"], changed["is_clean"]) == (False, False)
    finally:
        clickhouse.kill()


@pytest.mark.long
async def test_an_erasure_outlives_the_gateway_that_carries_it_out(tmp_path: Path, redis_server: ValkeyProcess) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with serving(tmp_path, redis_server.url, num_processes=1) as first:
        async with httpx.AsyncClient(base_url=f"{first.origin}/admin/v1", headers=headers, timeout=30) as admin:
            tenant_id = (await admin.post("/tenants", json={"name": "zyxomma", "tier": "free"})).json()["id"]
            made = await admin.post("/erasures", json={"tenant_id": tenant_id})

            async def has_begun() -> bool:
                return bool((await admin.get(f"/erasures/{made.json()['id']}")).json()["waits_for"])

            await until(has_begun)
        kill(first.parent.pid)
        await until_dead({first.parent.pid})
    async with started(tmp_path, redis_server.url) as second:

        async def serves() -> bool:
            return await accepts(second.port)

        await until(serves)
        async with httpx.AsyncClient(base_url=f"{second.origin}/admin/v1", headers=headers, timeout=30) as admin:
            erasure = await finished(admin, made.json()["id"])
            assert [step["name"] for step in erasure["steps"]] == list(STEPS)
            assert (await admin.get(f"/tenants/{tenant_id}")).status_code == 404
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or b"zyxomma" not in path.read_bytes(), path
    assert "zyxomma" not in second.log
