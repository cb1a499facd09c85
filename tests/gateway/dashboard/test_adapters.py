"""Adapters in the console: uploaded, replaced and deleted by operators and tenants' administrators, by nobody else."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
import redis.asyncio as redis

from gateway.admin.adapters import FORM_OVERHEAD_BYTES
from gateway.clock import utc_now
from gateway.metering.store import UsageStore
from protocol.artifacts import artifact_name
from protocol.ids import new_request_id
from protocol.load import WORKERS_KEY, AdapterBase, Registration, seal
from tests.support.accessibility import assert_accessible
from tests.support.adapter_files import config_bytes, objects_below, tensors, weights_bytes
from tests.support.browser import open_tab
from tests.support.clickhouse import any_clickhouse, own_database
from tests.support.consoles import Visit, visit
from tests.support.events import make_event
from tests.support.fleets import load
from tests.support.gateways import ADMIN_KEY, WORKER_KEY, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

CONFIG, WEIGHTS = config_bytes(), weights_bytes(tensors())
OTHER_WEIGHTS = weights_bytes(tensors(layers=1))
LARGE, TOO_LARGE = (weights_bytes(tensors(layers=16, size=size)) for size in (18_000, 25_000))
PATH, NEW = "/dashboard/adapters", "/dashboard/adapters/new"


@pytest.fixture
async def gateway(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    async with running_gateway(make_settings(tmp_path, valkey.url, max_adapter_bytes=10 << 20)) as running:
        for model, pool in (("m-7b", "small"), ("m-70b", "large")):
            await running.post("/models", {"id": model, "pool": pool, "context_window": 512})
        yield running


async def tenant_key(gateway: Gateway, *scopes: str) -> str:
    return await gateway.make_key(scopes=scopes or ("tenant-admin", "inference"))


async def send(
    visitor: Visit,
    path: str = NEW,
    *,
    config: bytes = CONFIG,
    weights: bytes = WEIGHTS,
    weights_name: str = "adapter_model.safetensors",
    headers: dict[str, str] | None = None,
    **fields: str,
) -> httpx.Response:
    """The page's form, with files, as a browser sends it."""
    page = (await visitor.http.get(path)).text
    shown = {name: found[1] for name in ("token", "version") if (found := hidden(page, name))}
    typed = ({"name": "voice", "model": "m-7b"} if path == NEW else {}) | fields
    files = {"config": ("adapter_config.json", config), "weights": (weights_name, weights)}
    return await visitor.http.post(path, data=shown | typed, files=files, headers=headers)


def hidden(page: str, name: str) -> "re.Match[str] | None":
    # The form's own is the last of its name.
    found = list(re.finditer(rf'name="{name}" value="([^"]*)"', page))
    return found[0] if found else None


def kept(gateway: Gateway) -> list[str]:
    return objects_below(gateway.services.settings.data_dir / "artifacts")


async def listed(gateway: Gateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gateway.admin.get("/adapters")).json()["data"]
    return rows


async def test_a_tenants_administrator_uploads_replaces_and_deletes_its_own(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        made = await send(visitor)
        assert made.status_code == 303, made.text
        [adapter] = await listed(gateway)
        assert adapter["tenant_id"] is not None and adapter["name"] == "voice"
        path = f"{PATH}/{adapter['id']}"
        page = await visitor.page(made.headers["location"])
        assert "not checked yet" in page and "The adapter is kept." in page and "playground?model=voice" in page
        # More than other bodies may have.
        replaced = await send(visitor, f"{path}/replace?model=m-7b", weights=LARGE)
        assert replaced.status_code == 303, replaced.text
        added = await send(visitor, f"{path}/replace?model=m-70b")
        assert added.status_code == 303, added.text
        [adapter] = await listed(gateway)
        assert {model: each["version"] for model, each in adapter["details"].items()} == {"m-7b": 2, "m-70b": 1}
        page = await visitor.page(path)
        assert page.count("<td>replace</td>") == 2 and page.count("<td>create</td>") == 1
        assert await visitor.page(f"{path}/delete") and len(await listed(gateway)) == 1, "nothing is done by looking"
        deleted = await visitor.send(f"{path}/delete")
        assert (deleted.status_code, await listed(gateway)) == (303, [])
        assert "The adapter is deleted" in await visitor.page(deleted.headers["location"])
        assert "no such adapter" in await visitor.page(f"{path}/delete", status=404)
    actions = [
        row["action"] for row in (await gateway.admin.get("/audit", params={"action": "adapter"})).json()["data"]
    ]
    assert actions == ["adapter.create", "adapter.replace", "adapter.replace", "adapter.delete"]


async def test_an_operator_uploads_for_everybody_and_for_a_tenant_by_name(gateway: Gateway) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme <b>", "tier": "free"})
    async with visit(gateway, ADMIN_KEY) as visitor:
        assert (await send(visitor, tenant="")).status_code == 303
        assert (await send(visitor, name="theirs", tenant="acme <b>")).status_code == 303
        unknown = await send(visitor, name="nobodys", tenant="nobody")
        assert unknown.status_code == 400 and "There is no tenant" in unknown.text and 'value="nobodys"' in unknown.text
        page = await visitor.page(PATH)
        assert "everybody" in page and "acme &lt;b&gt;" in page and "<b>" not in page.replace("<b>platform</b>", "")
    assert {row["name"]: row["tenant_id"] for row in await listed(gateway)} == {"voice": None, "theirs": tenant["id"]}


async def test_an_upload_beyond_what_may_be_read_is_told_on_a_page(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        reply = await send(visitor, weights=bytes((10 << 20) + FORM_OVERHEAD_BYTES))
        assert reply.status_code == 413 and reply.headers["content-type"].startswith("text/html")
        assert "<h1>This is too large</h1>" in reply.text and "default-src 'none'" in str(reply.headers)
    async with gateway.client(ADMIN_KEY) as client:
        refused = await client.post(f"{gateway.origin}/admin/v1/tenants", content=bytes(12 << 20))
        assert refused.status_code == 413 and refused.json()["error"]["message"]


async def test_an_adapter_that_was_replaced_meanwhile_is_not_deleted_unseen(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        path = (await send(visitor)).headers["location"].partition("?")[0]
        asked = await visitor.page(f"{path}/delete")
        assert "m-7b version 1" in asked
        assert (await send(visitor, f"{path}/replace?model=m-7b", weights=LARGE)).status_code == 303
        refused = await visitor.submit(asked, f"{path}/delete", {})
        assert refused.status_code == 409 and "It was changed since" in refused.text
        assert "m-7b version 2" in refused.text and len(await listed(gateway)) == 1
        assert (await visitor.submit(refused.text, f"{path}/delete", {})).status_code == 303
        assert await listed(gateway) == []


async def test_another_tenants_adapter_is_not_there(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as owner:
        assert (await send(owner)).status_code == 303
    [adapter] = await listed(gateway)
    path = f"{PATH}/{adapter['id']}"
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        assert ">voice<" not in await visitor.page(PATH)
        token = hidden(await visitor.page(PATH), "token")
        assert token is not None
        for place in (path, f"{path}/replace?model=m-7b", f"{path}/delete"):
            await visitor.page(place, status=404)
        files = {"config": ("c", CONFIG), "weights": ("w.safetensors", OTHER_WEIGHTS)}
        form = {"token": token[1], "version": "1"}
        sent = await visitor.http.post(f"{path}/replace?model=m-7b", data=form, files=files)
        deleted = await visitor.http.post(f"{path}/delete", data=form)
        assert (sent.status_code, deleted.status_code) == (404, 404)
        theirs = await send(visitor, tenant_id=str(adapter["tenant_id"]), name="x")
        assert theirs.status_code == 404
    assert await listed(gateway) == [adapter]


async def test_what_is_for_everybody_is_changed_by_operators_alone(gateway: Gateway) -> None:
    async with visit(gateway, ADMIN_KEY) as operator:
        assert (await send(operator)).status_code == 303
    [adapter] = await listed(gateway)
    path = f"{PATH}/{adapter['id']}"
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        page = await visitor.page(path)
        assert "/replace" not in page and "/delete" not in page and "Try it" in page
        await visitor.page(f"{path}/replace?model=m-7b", status=404)
        await visitor.page(f"{path}/delete", status=404)


async def test_a_key_that_only_reads_usage_does_not_get_there(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway, "usage")) as visitor:
        for path in (PATH, NEW):
            page = await visitor.page(path, status=403)
            assert 'href="/dashboard/adapters"' not in page


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        ({"name": ""}, 400, 'id="p-name"'),
        ({"name": "a b\u202e"}, 400, 'id="p-name"'),
        ({"name": "m-7b"}, 409, "m-7b"),
        ({"model": "nothing"}, 400, "there is no model"),
        ({"config": b""}, 400, 'id="p-config"'),
        ({"config": b"{"}, 400, 'id="p-config"'),
        ({"weights": b"x"}, 400, 'id="p-weights"'),
        ({"weights": b""}, 400, 'id="p-weights"'),
        ({"weights_name": "<b>.bin"}, 400, "save the adapter"),
        ({"weights": TOO_LARGE}, 400, "bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_refusal_stands_at_its_field_and_nothing_typed_is_lost(
    gateway: Gateway, change: dict[str, Any], status: int, told: str
) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        reply = await send(visitor, **({"name": "my-voice"} | change))
        assert reply.status_code == status, reply.text
        assert told.lower() in reply.text.lower() and "<b>.bin" not in reply.text
        assert 'role="alert"' in reply.text
        if "name" not in change:
            assert 'value="my-voice"' in reply.text
    assert (await listed(gateway), kept(gateway)) == ([], [])


async def test_what_a_worker_says_that_does_not_fit_is_told_at_the_field(
    gateway: Gateway, valkey: ValkeyProcess
) -> None:
    base = AdapterBase(num_layers=2, shapes={"q_proj": (32, 32)}, max_rank=8)
    async with telling(gateway, valkey.url, base, ()), visit(gateway, await tenant_key(gateway)) as visitor:
        reply = await send(visitor)
        assert reply.status_code == 400 and 'id="p-weights"' in reply.text


async def test_where_an_adapter_is_resident_is_shown(gateway: Gateway, valkey: ValkeyProcess) -> None:
    async with visit(gateway, ADMIN_KEY) as visitor:
        assert (await send(visitor)).status_code == 303
        [adapter] = await listed(gateway)
        path, name = f"{PATH}/{adapter['id']}", artifact_name(adapter["details"]["m-7b"]["digest"])
        assert "no replica tells" in await visitor.page(path)
        base = AdapterBase(num_layers=2, shapes={"q_proj": (64, 64)}, max_rank=8)
        async with telling(gateway, valkey.url, base, (name,)) as worker_id:
            assert f'1 of 1 replica <span class="muted">{worker_id}</span>' in await visitor.page(path)


@asynccontextmanager
async def telling(gateway: Gateway, redis_url: str, base: AdapterBase, adapters: tuple[str, ...]) -> AsyncIterator[str]:
    """A worker of m-7b says all the time that it is there."""
    worker_id = f"w-{uuid4().hex[:8]}"
    report = load(adapters=adapters, fetches=True, resident=adapters)
    report = msgspec.structs.replace(report, worker_id=worker_id, model="m-7b", pool="small", adapter_base=base)

    async def tell(client: "redis.Redis") -> None:
        sent = Registration(url=f"http://{worker_id}:9", sent_at_ms=int(time.time() * 1000), load=report)
        await client.hset(WORKERS_KEY, worker_id, seal(sent, worker_key=WORKER_KEY))

    async def tell_on(client: "redis.Redis") -> None:
        while True:
            await asyncio.sleep(1)
            await tell(client)

    async with redis.from_url(redis_url) as client:  # type: ignore[no-untyped-call]
        await tell(client)
        telling_on = asyncio.create_task(tell_on(client))
        try:
            await gateway.services.registry.refresh()
            yield worker_id
        finally:
            telling_on.cancel()
            await client.hdel(WORKERS_KEY, worker_id)


async def test_who_was_second_to_replace_is_told_and_may_try_again(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        await send(visitor)
        [adapter] = await listed(gateway)
        path = f"{PATH}/{adapter['id']}/replace?model=m-7b"
        assert (await send(visitor, path, weights=OTHER_WEIGHTS)).status_code == 303
        late = await send(visitor, path, version="1")
        assert late.status_code == 409 and "somebody else was quicker" in late.text
        assert 'name="version" value="2"' in late.text, "the form is about what stands there now"
        [adapter] = await listed(gateway)
        assert adapter["details"]["m-7b"]["version"] == 2


@pytest.mark.parametrize("version", ["", "x", "²", "9" * 30])
async def test_a_made_up_version_is_refused(gateway: Gateway, version: str) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        await send(visitor)
        [adapter] = await listed(gateway)
        reply = await send(visitor, f"{PATH}/{adapter['id']}/replace?model=m-7b", version=version)
        assert reply.status_code == 400
        gone = await visitor.http.get(f"{PATH}/{adapter['id']}/replace?model=none")
        assert gone.status_code == 404


async def test_nothing_is_uploaded_without_the_pages_own_token(gateway: Gateway) -> None:
    async with visit(gateway, await tenant_key(gateway)) as visitor:
        replies = [
            await send(visitor, token="made up"),
            await send(visitor, headers={"Sec-Fetch-Site": "cross-site"}),
            await visitor.http.post(NEW, data={"name": "voice", "model": "m-7b"}),
            await visitor.http.post(NEW, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=b"}),
        ]
        assert [reply.status_code for reply in replies] == [403, 403, 400, 400]
    assert (await listed(gateway), kept(gateway)) == ([], [])


@pytest.mark.parametrize("adapter_id", ["x", "01900000-0000-7000-8000-000000000000"])
async def test_an_adapter_that_is_not_there_is_a_page_that_says_so(gateway: Gateway, adapter_id: str) -> None:
    async with visit(gateway, ADMIN_KEY) as visitor:
        for path in ("", "/delete", "/replace?model=m-7b"):
            assert "no such adapter" in await visitor.page(f"{PATH}/{adapter_id}{path}", status=404)


async def test_what_an_adapter_was_used_for_leads_to_its_requests(tmp_path: Path, valkey: ValkeyProcess) -> None:
    with (
        any_clickhouse(tmp_path / "clickhouse") as server,
        own_database(server) as url,
        closing(UsageStore(url)) as store,
    ):
        store.prepare()
        async with running_gateway(make_settings(tmp_path, valkey.url, clickhouse_url=url)) as gateway:
            await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
            async with visit(gateway, await tenant_key(gateway)) as visitor:
                await send(visitor)
                [adapter] = await listed(gateway)
                fields = {"tenant_id": adapter["tenant_id"], "adapter_id": adapter["id"], "timestamp": utc_now()}
                made = [new_request_id(utc_now()) for _ in range(3)]
                store.insert([make_event(name, cost_nanousd=10**9, **fields) for name in made])
                page = await visitor.page(f"{PATH}/{adapter['id']}")
                assert "<dd>3</dd>" in page and "$3.00" in page
                found = re.search(r'href="([^"]+)">its requests', page)
                assert found is not None
                requests = await visitor.page(unescape(found[1]))
                assert all(f"/dashboard/requests/{name}" in requests for name in made)


@pytest.mark.parametrize("width", [1280, 390])
async def test_an_adapter_is_uploaded_in_the_browser(
    chromium: str, tmp_path: Path, gateway: Gateway, width: int
) -> None:
    (tmp_path / "adapter_config.json").write_bytes(CONFIG)
    (tmp_path / "adapter_model.safetensors").write_bytes(WEIGHTS)
    async with open_tab(chromium, tmp_path / "profile") as tab:
        await tab.resize(width)
        await tab.log_in(gateway.origin, await tenant_key(gateway), PATH)
        await assert_accessible(tab)
        await tab.click("main a.button")
        await assert_accessible(tab)
        await tab.fill("[name=name]", "m-7b")
        for field, file in (("config", "adapter_config.json"), ("weights", "adapter_model.safetensors")):
            document = await tab.call("DOM.getDocument")
            node = await tab.call("DOM.querySelector", nodeId=document["root"]["nodeId"], selector=f"[name={field}]")
            await tab.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=[str(tmp_path / file)])
        if width == 1280:
            await tab.click("main button")
            assert await tab.evaluate("document.querySelector('[role=alert]') !== null"), "a model has this name"
            await assert_accessible(tab)
            await tab.go(f"{gateway.origin}{PATH}")
            assert all("409" in complaint for complaint in tab.complaints), tab.complaints
            return
        await tab.fill("[name=name]", "w" * 60)
        await tab.click("main button")
        assert await tab.evaluate("document.querySelector('h1').innerText") == "w" * 60
        for path in (await tab.evaluate("location.pathname"), PATH):
            await tab.go(f"{gateway.origin}{path}")
            await assert_accessible(tab)
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.complaints == []
