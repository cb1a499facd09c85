"""Adapters over the admin API, without a worker: who may upload what, what is refused, and that nothing of it stays."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis.asyncio as redis

from protocol.artifacts import artifact_name
from protocol.load import WORKERS_KEY, AdapterBase, Registration, seal
from tests.support.adapter_files import config_bytes, objects_below, tensors, weights_bytes
from tests.support.fleets import load
from tests.support.gateways import WORKER_KEY, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

CONFIG, WEIGHTS = config_bytes(), weights_bytes(tensors())
LARGE = weights_bytes(tensors(layers=16, size=40_000))
FIELDS = {"name": "voice", "model": "m-7b"}


@pytest.fixture
async def gateway(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    """With a model, and roots that adapters may be taken from."""
    roots = (f"file://{tmp_path}/allowed", "s3://bucket/adapters")
    settings = make_settings(tmp_path, valkey.url, adapter_roots=roots, max_adapter_bytes=24 << 20)
    async with running_gateway(settings) as running:
        await running.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
        yield running


async def upload(
    gateway: Gateway,
    fields: dict[str, str] | None = None,
    *,
    config: bytes = CONFIG,
    weights: bytes = WEIGHTS,
    weights_name: str = "adapter_model.safetensors",
    key: str | None = None,
    put: str | None = None,
) -> httpx.Response:
    """put: the adapter whose variant for m-7b is to be replaced."""
    files = {"config": ("adapter_config.json", config), "weights": (weights_name, weights)}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if put is not None:
        return await gateway.admin.put(f"/adapters/{put}/variants/m-7b", files=files, headers=headers)
    return await gateway.admin.post("/adapters", data=fields or FIELDS, files=files, headers=headers)


def kept(gateway: Gateway) -> list[str]:
    return objects_below(gateway.services.settings.data_dir / "artifacts")


async def listed(gateway: Gateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gateway.admin.get("/adapters")).json()["data"]
    return rows


async def refusal(gateway: Gateway, reply: httpx.Response, status: int) -> dict[str, Any]:
    """Its error; nothing was registered and no file is left."""
    assert reply.status_code == status, reply.text
    assert (await listed(gateway), kept(gateway)) == ([], [])
    error: dict[str, Any] = reply.json()["error"]
    return error


async def test_an_upload_is_kept_and_pending_until_a_worker_tells_its_shapes(gateway: Gateway) -> None:
    reply = await upload(gateway)
    assert reply.status_code == 201, reply.text
    made = reply.json()
    detail = made["details"]["m-7b"]
    assert (made["name"], made["tenant_id"], made["status"], detail["version"]) == ("voice", None, "pending", 1)
    assert (detail["size_bytes"], detail["rank"]) == (len(CONFIG) + len(WEIGHTS), 4)
    assert made["variants"] == {"m-7b": artifact_name(detail["digest"])}
    assert len(kept(gateway)) == 3 and all(detail["digest"] in path for path in kept(gateway))
    assert await listed(gateway) == [made]
    assert (await gateway.admin.get(f"/adapters/{made['id']}")).json() == made
    async with gateway.client(await gateway.make_key()) as client:
        answer = await client.post("/completions", json={"model": "voice", "prompt": "Hi"})
        cards = [card["id"] for card in (await client.get("/models")).json()["data"]]
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_pending")
    assert "no worker of its base model" in answer.json()["error"]["message"]
    assert "voice" not in cards


@asynccontextmanager
async def registered(valkey: ValkeyProcess, shapes: dict[str, tuple[int, int]]) -> AsyncIterator[None]:
    """A worker's registration for the pool `small`, sealed as workers seal theirs."""
    base = AdapterBase(num_layers=2, shapes=shapes, max_rank=64)
    report = msgspec.structs.replace(load(), worker_id="w-1", model="m-7b", pool="small", adapter_base=base)
    told = Registration(url="http://127.0.0.1:9", sent_at_ms=time.time_ns() // 1_000_000, load=report)
    async with redis.Redis.from_url(valkey.url) as client:
        await client.hset(WORKERS_KEY, "w-1", seal(told, worker_key=WORKER_KEY))  # type: ignore[misc]
        try:
            yield
        finally:
            await client.hdel(WORKERS_KEY, "w-1")  # type: ignore[misc]


async def settled(gateway: Gateway) -> dict[str, Any]:
    """The adapter, once it is not pending."""
    async with asyncio.timeout(30):
        while True:
            [row] = await listed(gateway)
            if row["status"] != "pending":
                return row
            await asyncio.sleep(0.05)


async def test_a_pending_adapter_is_ready_when_a_worker_tells_shapes_that_it_fits(
    gateway: Gateway, valkey: ValkeyProcess
) -> None:
    await upload(gateway)
    async with registered(valkey, {"q_proj": (64, 64)}):
        row = await settled(gateway)
        assert (row["status"], row["details"]["m-7b"]["reason"]) == ("ready", None)
        again = await upload(gateway, {**FIELDS, "name": "second"})
        assert again.json()["status"] == "ready"
        async with gateway.client(await gateway.make_key()) as client:
            cards = [card["id"] for card in (await client.get("/models")).json()["data"]]
    assert {"voice", "second"} <= set(cards)


async def test_a_pending_adapter_that_does_not_fit_is_refused_with_the_reason(
    gateway: Gateway, valkey: ValkeyProcess
) -> None:
    await upload(gateway)
    async with registered(valkey, {"q_proj": (128, 64)}):
        row = await settled(gateway)
        assert row["status"] == "refused"
        assert "that of 'm-7b' is 128 x 64" in row["details"]["m-7b"]["reason"]
        async with gateway.client(await gateway.make_key()) as client:
            answer = await client.post("/completions", json={"model": "voice", "prompt": "Hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "adapter_refused")
        replaced = await upload(gateway, put=row["id"], weights=LARGE)
        assert (replaced.status_code, replaced.json()["error"]["code"]) == (400, "invalid_adapter")
    assert (await listed(gateway))[0]["details"]["m-7b"]["version"] == 1


async def test_a_new_version_takes_the_place_of_the_old_one(gateway: Gateway) -> None:
    first = (await upload(gateway)).json()
    reply = await upload(gateway, put=first["id"], weights=LARGE)
    assert reply.status_code == 200, reply.text
    second = reply.json()
    assert second["id"] == first["id"]
    assert second["details"]["m-7b"]["version"] == 2
    assert second["details"]["m-7b"]["digest"] != first["details"]["m-7b"]["digest"]
    [*_, entry] = (await gateway.admin.get("/audit")).json()["data"]
    assert (entry["action"], entry["detail"]["digest"]) == ("adapter.replace", second["details"]["m-7b"]["digest"])


REFUSED: Any = [
    ({"weights": b"PK\x03\x04" + bytes(100)}, 400, "weights"),
    ({"weights_name": "adapter_model.bin"}, 400, "weights"),
    ({"weights": WEIGHTS[:-1]}, 400, "weights"),
    ({"weights": weights_bytes({key: m * float("nan") for key, m in tensors().items()})}, 400, "weights"),
    ({"weights": weights_bytes(tensors(rank=8))}, 400, "weights"),
    ({"weights": weights_bytes(tensors(layers=16, size=50_000))}, 400, "weights"),
    ({"config": config_bytes(r=1000)}, 400, "config"),
    ({"config": config_bytes(r=0)}, 400, "config"),
    ({"config": b" " * (2 << 20)}, 400, "config"),
    ({"fields": {"name": "voice"}}, 400, "model"),
    ({"fields": {"name": "voice", "model": "none"}}, 400, "model"),
    ({"fields": {**FIELDS, "more": "x"}}, 400, "more"),
    ({"fields": {**FIELDS, "tenant_id": "x"}}, 400, "tenant_id"),
    ({"fields": {**FIELDS, "tenant_id": "018f0000-0000-7000-8000-000000000000"}}, 404, None),
    ({"fields": {**FIELDS, "name": "a b"}}, 400, "name"),
    ({"fields": {**FIELDS, "name": "a\u202eb"}}, 400, "name"),
    ({"fields": {**FIELDS, "name": "x" * 121}}, 400, "name"),
    ({"fields": {**FIELDS, "name": "m-7b"}}, 409, "name"),
    ({"fields": {**FIELDS, "name": "auto"}}, 409, "name"),
]


async def test_what_is_refused_leaves_nothing(gateway: Gateway) -> None:
    for change, status, param in REFUSED:
        reply = await upload(gateway, **change)
        assert (await refusal(gateway, reply, status))["param"] == param, reply.text


async def test_more_than_the_bound_is_refused_before_it_is_read(gateway: Gateway) -> None:
    host, port = gateway.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_head(gateway, 30 << 20))
    async with asyncio.timeout(20):
        status = await reader.readline()
    writer.close()
    assert b" 413 " in status
    assert (await listed(gateway), kept(gateway)) == ([], [])


async def test_whoever_sends_all_before_reading_is_told_the_reason_too(gateway: Gateway) -> None:
    reply = await upload(gateway, {**FIELDS, "name": "auto"}, weights=bytes(23 << 20))
    assert (await refusal(gateway, reply, 409))["param"] == "name"


async def test_a_compressed_body_is_refused(gateway: Gateway) -> None:
    reply = await gateway.admin.post(
        "/adapters",
        content=b"x",
        headers={"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": "gzip"},
    )
    assert (await refusal(gateway, reply, 415))["code"] == "unsupported_media_type"


BOUNDARY = "frontier"


def _head(gateway: Gateway, size: int) -> bytes:
    key = gateway.admin.headers["authorization"]
    lines = [
        "POST /admin/v1/adapters HTTP/1.1",
        "Host: g",
        f"Authorization: {key}",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        f"Content-Length: {size}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def form(*parts: tuple[str, str | None, bytes], is_whole: bool = True) -> bytes:
    content = b""
    for name, filename, data in parts:
        shown = f'; filename="{filename}"' if filename is not None else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'
        content += head.encode() + data + b"\r\n"
    return content + (f"--{BOUNDARY}--\r\n".encode() if is_whole else b"")


_FIELDS = [(name, None, value.encode()) for name, value in FIELDS.items()]
_CONFIG, _WEIGHTS = ("config", "adapter_config.json", CONFIG), ("weights", "w.safetensors", WEIGHTS)


WRONG_FORMS: Any = [
    (b"", "was cut"),
    (b"no form at all", "no multipart form"),
    (form(*_FIELDS), "send adapter_config.json as the file `config`"),
    (form(*_FIELDS, _CONFIG), "send adapter_model.safetensors as the file `weights`"),
    (form(*_FIELDS, _WEIGHTS, _CONFIG), "send adapter_config.json"),
    (form(*_FIELDS, _CONFIG, _WEIGHTS, ("more", "more", b"x")), "must be the last part"),
    (form(*_FIELDS, _FIELDS[0], _CONFIG, _WEIGHTS), "it came twice"),
    (form(*_FIELDS, _CONFIG, _WEIGHTS, is_whole=False), "was cut"),
    (form(*_FIELDS, _CONFIG, _WEIGHTS)[:-30], "was cut"),
    (form(*((f"field-{i}", None, b"") for i in range(20))), "more than 16 parts"),
    (form(("name", None, b"\xff"), _CONFIG, _WEIGHTS), "not UTF-8"),
    (form(("name", None, b"x" * 5000), _CONFIG, _WEIGHTS), "more than 1024 bytes"),
]


async def test_forms_that_are_wrong_or_cut_are_refused(gateway: Gateway) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    for content, reason in WRONG_FORMS:
        reply = await gateway.admin.post("/adapters", content=content, headers=headers)
        assert reason in (await refusal(gateway, reply, 400))["message"]


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary="])
async def test_a_form_without_a_boundary_is_refused(gateway: Gateway, content_type: str) -> None:
    reply = await gateway.admin.post("/adapters", content=form(), headers={"Content-Type": content_type})
    assert "boundary" in (await refusal(gateway, reply, 400))["message"]


@pytest.mark.parametrize("size", [300, 2000, 9 << 20])
async def test_nothing_stays_when_the_client_leaves_in_the_middle(gateway: Gateway, size: int) -> None:
    content = form(*_FIELDS, _CONFIG, ("weights", "w.safetensors", LARGE))
    host, port = gateway.origin.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(_head(gateway, len(content)) + content[:size])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    uploaded = await upload(gateway)
    assert uploaded.status_code == 201
    async with asyncio.timeout(20):
        while len(kept(gateway)) > 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [row["name"] for row in await listed(gateway)] == ["voice"]


async def test_a_name_that_is_taken_or_anothers_is_told_and_disturbs_nobody(gateway: Gateway) -> None:
    owner, other = [await gateway.post("/tenants", {"name": name, "tier": "pro"}) for name in ("owner", "other")]
    keys = {}
    for tenant in (owner, other):
        made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["tenant-admin"]})
        keys[tenant["id"]] = made["key"]
    first = (await upload(gateway, key=keys[owner["id"]])).json()
    assert first["tenant_id"] == owner["id"]
    taken = await upload(gateway, key=keys[owner["id"]], weights=LARGE)
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    # Two tenants may each have their own of one name, and of one content.
    second = (await upload(gateway, key=keys[other["id"]])).json()
    assert second["variants"] == first["variants"]
    stolen = await upload(gateway, put=first["id"], key=keys[other["id"]], weights=LARGE)
    foreign = await upload(gateway, {**FIELDS, "name": "x", "tenant_id": owner["id"]}, key=keys[other["id"]])
    hidden = await gateway.admin.get(
        f"/adapters/{first['id']}", headers={"Authorization": f"Bearer {keys[other['id']]}"}
    )
    assert [reply.status_code for reply in (stolen, foreign, hidden)] == [404, 404, 404]
    assert {row["id"]: row["details"]["m-7b"]["version"] for row in await listed(gateway)} == {
        first["id"]: 1,
        second["id"]: 1,
    }
    assert len(kept(gateway)) == 3


async def test_the_tiers_quota_holds_for_uploads_that_come_at_once(gateway: Gateway) -> None:
    await gateway.admin.patch("/tiers/pro", json={"max_adapters": 1})
    tenant = await gateway.post("/tenants", {"name": "owner", "tier": "pro"})
    replies = await asyncio.gather(
        *(
            upload(gateway, {**FIELDS, "name": f"voice-{i}", "tenant_id": tenant["id"]}, config=config_bytes(note=i))
            for i in range(4)
        )
    )
    assert sorted(reply.status_code for reply in replies) == [201, 403, 403, 403]
    assert len(await listed(gateway)) == 1


async def test_a_tenant_names_no_source_and_nobody_one_outside_the_roots(gateway: Gateway, tmp_path: Path) -> None:
    key = await gateway.make_key(scopes=("tenant-admin",))
    inside = {**FIELDS, "source": f"file://{tmp_path}/allowed/a"}
    reply = await gateway.admin.post("/adapters", json=inside, headers={"Authorization": f"Bearer {key}"})
    assert (await refusal(gateway, reply, 403))["param"] == "source"
    for source in (
        f"file://{tmp_path}/elsewhere",
        f"file://{tmp_path}/allowed-too/a",
        f"file://{tmp_path}/allowed/../elsewhere",
        f"file://{tmp_path}/allowed/%2e%2e/elsewhere",
        "file:///etc",
        "/etc/passwd",
        "s3://bucket/adapters-of-others/a",
        "s3://other/adapters/a",
        "http://169.254.169.254/latest",
    ):
        reply = await gateway.admin.post("/adapters", json={**FIELDS, "source": source})
        assert (await refusal(gateway, reply, 400))["param"] == "source", source


def write_adapter(folder: Path, weights: bytes = WEIGHTS) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes(CONFIG)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


async def test_an_adapter_below_a_root_is_taken(gateway: Gateway, tmp_path: Path) -> None:
    write_adapter(tmp_path / "allowed" / "deep" / "a")
    made = await gateway.post("/adapters", {**FIELDS, "source": f"file://{tmp_path}/allowed/deep/a"})
    uploaded = (await upload(gateway, {**FIELDS, "name": "same"})).json()
    assert made["variants"] == uploaded["variants"]


async def test_no_symbolic_link_leads_out_of_a_root(gateway: Gateway, tmp_path: Path) -> None:
    outside, allowed = write_adapter(tmp_path / "outside"), tmp_path / "allowed"
    (allowed / "b").mkdir(parents=True)
    (allowed / "a").symlink_to(outside)
    (allowed / "b" / "adapter_config.json").write_bytes(CONFIG)
    (allowed / "b" / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    for name in ("a", "b"):
        reply = await gateway.admin.post("/adapters", json={**FIELDS, "source": f"file://{allowed}/{name}"})
        assert "symbolic link" in (await refusal(gateway, reply, 400))["message"]


async def test_what_is_missing_or_bad_at_a_source_is_told(gateway: Gateway, tmp_path: Path) -> None:
    write_adapter(tmp_path / "allowed" / "a", WEIGHTS[:-1])
    (tmp_path / "allowed" / "b" / "adapter_config.json").mkdir(parents=True)
    for name, reason in (("none", "there is no adapter_config.json"), ("a", "was cut"), ("b", "no regular file")):
        source = f"file://{tmp_path}/allowed/{name}"
        reply = await gateway.admin.post("/adapters", json={**FIELDS, "source": source})
        assert reason in (await refusal(gateway, reply, 400))["message"]


WRONG_BODIES: Any = [
    {},
    {**FIELDS},
    {"name": "voice", "variants": {}},
    {"name": "voice", "source": "file:///x"},
    {**FIELDS, "source": "file:///x", "variants": {"m-7b": "p"}},
    {"name": "voice", "variants": {"m-7b": artifact_name("0" * 64)}},
]


async def test_a_body_that_says_too_little_or_too_much_is_refused(gateway: Gateway) -> None:
    for body in WRONG_BODIES:
        await refusal(gateway, await gateway.admin.post("/adapters", json=body), 400)


async def test_a_store_that_is_down_is_a_503_and_nothing_is_registered(gateway: Gateway) -> None:
    folder = gateway.services.settings.data_dir / "artifacts"
    folder.rmdir()
    folder.write_text("in the way")
    reply = await upload(gateway)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "object_store_unavailable"), reply.text
    assert await listed(gateway) == []
    folder.unlink()
    assert (await upload(gateway)).status_code == 201


async def test_json_is_not_bounded_by_the_bound_of_files(gateway: Gateway) -> None:
    body = json.dumps({**FIELDS, "source": "x" * (9 << 20)})
    reply = await gateway.admin.post("/adapters", content=body, headers={"Content-Type": "application/json"})
    assert (await refusal(gateway, reply, 413))["code"] == "body_too_large"


async def test_of_replacements_that_race_one_passes(gateway: Gateway) -> None:
    made = (await upload(gateway)).json()
    path = f"/adapters/{made['id']}/variants/m-7b"

    async def replace(number: int) -> httpx.Response:
        weights = weights_bytes({name: tensor + number for name, tensor in tensors().items()})
        files = {"config": ("adapter_config.json", CONFIG), "weights": ("adapter_model.safetensors", weights)}
        return await gateway.admin.put(path, files=files, headers={"If-Match": '"1"'})

    replies = await asyncio.gather(*(replace(number) for number in range(1, 5)))
    assert sorted(reply.status_code for reply in replies) == [200, 412, 412, 412], [reply.text for reply in replies]
    [passed] = [reply.json() for reply in replies if reply.status_code == 200]
    [row] = await listed(gateway)
    assert row == passed and row["details"]["m-7b"]["version"] == 2
