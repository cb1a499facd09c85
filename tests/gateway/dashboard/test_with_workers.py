"""The playground and the fleet page over real workers."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from router.fleet import usable_members
from tests.gateway.dashboard.playground_scene import PATH, PlaygroundScene, read_stream
from tests.support.accessibility import assert_accessible
from tests.support.browser import Tab, open_tab
from tests.support.consoles import visit
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

FLEET = "/dashboard/fleet"


@pytest.fixture
async def gateway(tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]) -> AsyncIterator[Gateway]:
    """In front of both workers, with an adapter."""
    async with running_gateway(make_settings(tmp_path, fleet_valkey.url)) as running:
        for worker in workers:
            await declare(running, worker.model_id, pool=worker.pool)
        await running.post("/adapters", {"name": "pirate", "variants": {each.model_id: "pirate" for each in workers}})
        registry, bundles = running.services.registry, running.services.bundles
        await eventually(lambda: all(usable_members(registry.fleet.pools[each.pool]) for each in workers))
        await eventually(lambda: all(bundles.bundle_of(each.pool) for each in workers))
        yield running


async def make_key(gateway: Gateway) -> str:
    tenant = await gateway.post("/tenants", {"name": f"tenant-{uuid4().hex[:8]}", "tier": "enterprise"})
    scopes = ["inference", "usage"]
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": scopes})
    return str(made["key"])


async def shown(tab: Tab, expression: str) -> None:
    """Wait until it is true in the page."""
    deadline = time.monotonic() + 60
    while not await tab.evaluate(expression):
        assert time.monotonic() < deadline, (expression, await tab.evaluate("document.body.innerText"))


async def test_pools_and_an_adapter_answer_beside_each_other_in_the_browser(
    chromium: str, tmp_path: Path, gateway: Gateway
) -> None:
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.log_in(gateway.origin, await make_key(gateway), PATH)
        for field, model in (("model_1", "small"), ("model_2", "large"), ("model_3", "pirate")):
            await tab.evaluate(f"document.querySelector('[name={field}]').value = {json.dumps(model)}")
        await tab.evaluate("document.querySelector('#play details').open = true")
        await tab.fill("[name=max_tokens]", "8")
        await tab.fill("[name=seed]", "7")
        await tab.fill("[name=prompt]", "What is the capital of France?")
        await tab.evaluate("document.querySelector('#play button').click()")
        await shown(tab, "document.getElementById('told').innerText.startsWith('All answers')")
        assert await tab.evaluate("document.querySelectorAll('.answer .problem').length") == 0
        text = await tab.evaluate("[...document.querySelectorAll('.answer')].map(each => each.innerText).join()")
        assert "pool small" in text and "pool large" in text and "8 out" in text
        await assert_accessible(tab)
        assert tab.complaints == []
    await eventually(lambda: len(durable_events(gateway)) == 3)
    events = durable_events(gateway)
    assert {event.requested_model for event in events} == {"small", "large", "pirate"}
    assert all(event.cost_nanousd > 0 and event.completion_tokens <= 8 for event in events)


async def test_a_drained_worker_ends_what_it_runs_and_gets_nothing_new(gateway: Gateway) -> None:
    async with visit(gateway, ADMIN_KEY) as operator, visit(gateway, await make_key(gateway)) as visitor:
        registry = gateway.services.registry
        [worker] = registry.fleet.pools["small"].members
        page = await operator.page(FLEET)
        assert worker.worker_id in page and "well" in page and "pirate" in page
        fields = {"model_1": "small", "prompt": "Tell me a story.", "max_tokens": "64", "column": "0"}
        form = fields | {"token": await PlaygroundScene.token_of(visitor)}
        path = f"{FLEET}/drain?worker={quote(worker.worker_id, safe='')}"
        try:
            async with visitor.http.stream("POST", f"{PATH}/answer", data=form) as reply:
                lines = reply.aiter_lines()
                async for line in lines:
                    if line.startswith('data: {"id"'):
                        break
                assert (await operator.send(path)).status_code == 303
                assert usable_members(registry.fleet.pools["small"]) == ()
                rest = "\n".join([line async for line in lines])
            assert "event: end" in rest and "event: problem" not in rest and '"error"' not in rest
            assert "drained" in await operator.page(FLEET) or "draining" in await operator.page(FLEET)
            refused = dict(await read_stream(visitor, fields))
            assert "unavailable" in refused["problem"]
        finally:
            assert (await operator.send(path.replace("/drain", "/undrain"))).status_code == 303
        assert "problem" not in dict(await read_stream(visitor, fields | {"max_tokens": "2"}))
