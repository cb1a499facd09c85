"""A tenant or an end user leaves every store: gateway, worker, Valkey, ClickHouse, the object store, both databases."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.domain.audit.verification import verify
from gateway.services import Services
from migrations.run import migrate
from tests.gateway.domain.conftest import postgres_url
from tests.gateway.erasure.scenes import Customer, Scene, digests_in, finished, make_customer, running_scene, sweep
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

__all__ = ["postgres_url"]

NAME, USER = "zyxomma", "quaggaburger"
OTHER, OTHER_USER = "bystander", "friendly"
HOUSE, SECOND = "household", "housemate"


@pytest.fixture(params=["sqlite", "postgresql"])
async def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    own_valkey: ValkeyProcess,
    clickhouse_url: str,
    worker: WorkerProcess,
    checkpoint: Path,
) -> AsyncIterator[Scene]:
    database_url = ""
    if request.param == "postgresql":
        database_url = request.getfixturevalue("postgres_url")
        await asyncio.to_thread(migrate, database_url)
    async with running_scene(
        tmp_path / "scene",
        redis_url=own_valkey.url,
        clickhouse_url=clickhouse_url,
        database_url=database_url,
        worker=worker,
        checkpoint=checkpoint,
    ) as running:
        yield running


@pytest.mark.long
async def test_nothing_of_an_erased_tenant_is_found_in_any_store(
    scene: Scene, redis: "Redis", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    gateway = scene.gateway
    stays = await make_customer(scene, OTHER, users=(OTHER_USER,))
    kept = digests_in(scene.folder / "store")
    goes = await make_customer(scene, NAME, users=(USER,))
    before = await scene.found(NAME, USER, redis=redis)
    assert {"table tenants", "table audit_log", "table batches", "clickhouse usage_events"} <= before
    assert len(digests_in(scene.folder / "store")) == len(digests_in(scene.folder / "cache")) == 2
    totals = await asyncio.to_thread(scene.totals)
    made = await gateway.admin.post("/erasures", json={"tenant_id": goes.tenant_id})
    assert made.status_code == 202, made.text
    async with gateway.client(goes.key) as client:
        assert (await client.get("/models")).status_code == 401
    again = await gateway.admin.post("/erasures", json={"tenant_id": goes.tenant_id})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "erasure_under_way")
    erasure = await finished(gateway.admin, made.json()["id"])
    await asyncio.to_thread(sweep, scene.clickhouse_url)

    assert await scene.found(NAME, USER, redis=redis, logs=caplog.text) == set()
    # The id itself stands where it was erased, and in the chain of the audit log, and nowhere else.
    places = await scene.found(goes.tenant_id, goes.tenant_id.replace("-", ""), redis=redis)
    assert {place for place in places if not place.startswith(("file", "logs"))} == {
        "table audit_log",
        "table erasures",
    }
    assert digests_in(scene.folder / "store") == kept
    assert digests_in(scene.folder / "cache") == kept
    assert await asyncio.to_thread(scene.totals) == totals
    counts = {step["name"]: step["counts"] for step in erasure["steps"]}
    assert (
        counts["usage"]["usage_events"] >= 4 and counts["files"]["files"] >= 2 and counts["adapters"]["artifacts"] == 1
    )
    assert counts["database"]["invoices_kept"] == 1 and set(counts["proof"].values()) == {0}

    await _check_audit(gateway.services)
    # Others have everything still.
    async with gateway.client(stays.key) as client:
        assert (await client.get(f"/files/{stays.file_id}/content")).status_code == 200
        assert len((await client.get("/sessions")).json()["data"]) == 1
        assert (await client.post("/completions", json={"model": f"{OTHER}-voice", "prompt": "Hi"})).status_code == 200
    invoice = (await gateway.admin.get(f"/invoices/{goes.invoice_id}")).json()
    assert (invoice["recipient"], invoice["status"]) == ("erased", "final") and invoice["total_nanousd"] > 0
    assert invoice["tenant_id"] != goes.tenant_id

    body = {"words": [NAME, USER]}
    proof = (await gateway.admin.post(f"/erasures/{erasure['id']}/verification", json=body)).json()
    assert proof["is_clean"] and proof["is_report_sealed"] and not proof["away"], proof
    seen = (await gateway.admin.post(f"/erasures/{erasure['id']}/verification", json={"words": [OTHER]})).json()
    assert not seen["is_clean"] and seen["found"]["database.tenants"] == 1


async def keep_an_answer(scene: Scene, tenant: Customer) -> None:
    """In the cache, of a request of the end user's."""
    policy = f"/tenants/{tenant.tenant_id}/cache"
    asked = {"model": scene.worker.model_id, "prompt": "Hi", "max_tokens": 1, "user": USER, "temperature": 0}
    chosen = await scene.gateway.admin.patch(policy, json={"mode": "exact", "is_default": True})
    assert chosen.status_code == 200, chosen.text
    async with scene.gateway.client(tenant.key) as client:
        assert (await client.post("/completions", json=asked)).headers["x-tiergate-cache"] == "miss"
    assert (await scene.gateway.admin.patch(policy, json={"mode": "off"})).status_code == 200


@pytest.mark.long
async def test_of_an_erased_end_user_nothing_is_found_and_others_keep_theirs(
    scene: Scene, redis: "Redis", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    gateway = scene.gateway
    tenant = await make_customer(scene, HOUSE, users=(USER, SECOND))
    assert {"table end_users", "clickhouse usage_events"} <= await scene.found(USER, redis=redis)
    totals = await asyncio.to_thread(scene.totals)
    await keep_an_answer(scene, tenant)
    kept = [key async for key in redis.scan_iter(match=f"*{{{tenant.tenant_id}}}:cache:*")]
    assert len(kept) == 1
    draft = {"tenant_id": tenant.tenant_id, "user_id": USER}
    async with gateway.client(tenant.admin_key) as admin:
        admin.base_url = f"{gateway.origin}/admin/v1"
        whole = await admin.post("/erasures", json={"tenant_id": tenant.tenant_id})
        assert whole.status_code == 403
        made = await admin.post("/erasures", json=draft)
        assert made.status_code == 202, made.text
        async with gateway.client(tenant.key) as client:
            asked = {"model": scene.worker.model_id, "prompt": "Hi", "max_tokens": 1}
            refused = await client.post("/completions", json={**asked, "user": USER})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "user_erased")
            assert (await client.post("/completions", json={**asked, "user": SECOND})).status_code == 200
        erasure = await finished(admin, made.json()["id"])
    assert await scene.found(USER, redis=redis, logs=caplog.text) == set()
    assert {"table end_users", "clickhouse usage_events"} <= await scene.found(SECOND, redis=redis)
    assert not await redis.exists(*kept)
    after = await asyncio.to_thread(scene.totals)
    # As many users as before, and all that was used; two requests more.
    assert after[0][0] == totals[0][0] + 2 and after[3][1] == totals[3][1]
    async with gateway.client(tenant.key) as client:
        assert [each["id"] for each in (await client.get("/sessions")).json()["data"]] == [f"{SECOND}-session"]
        assert (await client.get(f"/files/{tenant.file_id}/content")).status_code == 200
        # Who comes back is somebody new.
        assert (await client.post("/completions", json={**asked, "user": "later"})).status_code == 200
    await _check_audit(gateway.services)
    # Nothing to search for is no proof.
    empty = await gateway.admin.post(f"/erasures/{erasure['id']}/verification", json={})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "user_id")
    body = {"user_id": USER, "words": [USER]}
    proof = (await gateway.admin.post(f"/erasures/{erasure['id']}/verification", json=body)).json()
    assert proof["is_clean"], proof


async def _check_audit(services: Services) -> None:
    found = await verify(services.sessions, peppers=services.settings.peppers)
    assert found.num_erased > 0
