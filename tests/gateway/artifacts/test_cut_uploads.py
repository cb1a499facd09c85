"""An upload to S3 that ends in the middle, by its client or with its gateway: nothing of it stays, and nobody else is
disturbed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.artifacts.store import ABANDONED, UPLOADS, ArtifactStore
from gateway.clock import utc_now
from gateway.http.errors import Unavailable
from protocol.ids import new_id
from tests.support.adapter_files import config_bytes, tensors, weights_bytes
from tests.support.gateway_processes import Processes, accepts, kill, serving, started, until_dead
from tests.support.gateways import ADMIN_KEY, make_settings, running_gateway
from tests.support.object_stores import S3Server
from tests.support.valkey import ValkeyProcess

CONFIG, WEIGHTS = config_bytes(), weights_bytes(tensors())
LARGE = weights_bytes(tensors(layers=16, size=80_000))
"""Of several parts."""
HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}"}
DEADLINE_S = 60


def form(name: str, weights: bytes) -> dict[str, Any]:
    files = {"config": ("adapter_config.json", CONFIG), "weights": ("w.safetensors", weights)}
    return {"data": {"name": name, "model": "m-7b"}, "files": files}


async def upload(client: httpx.AsyncClient, name: str, weights: bytes = WEIGHTS) -> dict[str, Any]:
    reply = await client.post("/adapters", **form(name, weights))
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


async def listed(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await client.get("/adapters")).json()["data"]
    return rows


@asynccontextmanager
async def admin_of(processes: Processes) -> AsyncIterator[httpx.AsyncClient]:
    url = f"{processes.origin}/admin/v1"
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=DEADLINE_S) as client:
        yield client


@asynccontextmanager
async def upload_in_the_middle(processes: Processes, s3: S3Server, bucket: str) -> AsyncIterator[asyncio.StreamWriter]:
    """Of `voice`, whose first parts are in S3 and whose last never come."""
    url = f"{processes.origin}/admin/v1/adapters"
    request = httpx.Request("POST", url, headers=HEADERS, **form("voice", LARGE))
    content = request.read()
    head = [f"{name}: {value}" for name, value in request.headers.items()]
    _, writer = await asyncio.open_connection("127.0.0.1", processes.port)
    writer.write("\r\n".join(["POST /admin/v1/adapters HTTP/1.1", *head, "", ""]).encode())
    writer.write(content[: len(content) * 2 // 3])
    await writer.drain()
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(begun, s3, bucket):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    try:
        yield writer
    finally:
        writer.close()


def begun(s3: S3Server, bucket: str) -> list[str]:
    return [upload["Key"] for upload in s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


async def until_nothing_is_under_way(s3: S3Server, bucket: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(UPLOADS in key for key in await asyncio.to_thread(s3.keys, bucket)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_gateway_killed_in_mid_upload_leaves_a_free_name_and_what_it_left_is_swept(
    tmp_path: Path, valkey: ValkeyProcess, s3: S3Server
) -> None:
    bucket = s3.make_bucket()
    url = f"s3://{bucket}/some/prefix"
    variables = {**s3.environment, "TIERGATE_ARTIFACTS_URL": url}
    async with serving(tmp_path, valkey.url, num_processes=1, **variables) as processes:
        async with admin_of(processes) as client:
            await client.post("/models", json={"id": "m-7b", "pool": "small", "context_window": 512})
            other = await upload(client, "other")
            kept = s3.keys(bucket)
            # The client goes: nothing stays.
            async with upload_in_the_middle(processes, s3, bucket):
                assert await listed(client) == [other]
            await until_nothing_is_under_way(s3, bucket)
            assert s3.keys(bucket) == kept
        # The gateway dies: the parts stay in S3.
        async with upload_in_the_middle(processes, s3, bucket):
            dying = {processes.parent.pid} | processes.children()
            for pid in dying:
                kill(pid)
            await until_dead(dying)
    assert len(begun(s3, bucket)) == 1
    async with started(tmp_path, valkey.url, "--processes=1", **variables) as processes, admin_of(processes) as client:
        async with asyncio.timeout(DEADLINE_S):
            while not await accepts(processes.port):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await listed(client) == [other]
        made = await upload(client, "voice", LARGE)
        assert [row["name"] for row in await listed(client)] == ["other", "voice"]
        store, now = ArtifactStore(url), utc_now()
        await store.remove_abandoned(now=now)
        assert len(begun(s3, bucket)) == 1, "it may be another gateway's"
        await store.remove_abandoned(now=now + ABANDONED + timedelta(minutes=1))
        await until_nothing_is_under_way(s3, bucket)
        digests = {each["details"]["m-7b"]["digest"] for each in (other, made)}
        assert {key.split("/")[-2] for key in s3.keys(bucket)} == digests


async def test_a_gateway_that_starts_aborts_what_was_abandoned_and_touches_nothing_else(
    tmp_path: Path, valkey: ValkeyProcess, s3: S3Server
) -> None:
    bucket = s3.make_bucket()
    long_ago = new_id(utc_now() - ABANDONED - timedelta(minutes=1))
    keys = [f"prefix/{UPLOADS}/{long_ago}", f"prefix/{UPLOADS}/{new_id(utc_now())}", "prefix-of-others/uploads/theirs"]
    for key in keys:
        begin = s3.client.create_multipart_upload(Bucket=bucket, Key=key)
        part = {"Bucket": bucket, "Key": key, "UploadId": begin["UploadId"], "PartNumber": 1}
        s3.client.upload_part(**part, Body=b"x")
    variables = {**s3.environment, "TIERGATE_ARTIFACTS_URL": f"s3://{bucket}/prefix"}
    async with serving(tmp_path, valkey.url, num_processes=1, **variables), asyncio.timeout(DEADLINE_S):
        while keys[0] in await asyncio.to_thread(begun, s3, bucket):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert sorted(begun(s3, bucket)) == sorted(keys[1:])


async def test_a_store_that_is_down_when_uploads_are_swept_is_told(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="object store"):
        await ArtifactStore("s3://no-such-bucket/prefix").remove_abandoned(now=utc_now())


async def test_a_bucket_that_is_away_is_a_503_nothing_is_registered_and_the_name_is_free_when_it_is_back(
    tmp_path: Path, valkey: ValkeyProcess, s3: S3Server
) -> None:
    url = f"s3://{(bucket := s3.make_bucket())}/prefix"
    async with running_gateway(make_settings(tmp_path, valkey.url, artifacts_url=url)) as gateway:
        await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
        s3.client.delete_bucket(Bucket=bucket)
        for weights in (WEIGHTS, LARGE):
            reply = await gateway.admin.post("/adapters", **form("voice", weights))
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "object_store_unavailable"), reply.text
        assert await listed(gateway.admin) == []
        s3.client.create_bucket(Bucket=bucket)
        assert s3.keys(bucket) == []
        made = await upload(gateway.admin, "voice")
        assert await listed(gateway.admin) == [made]
