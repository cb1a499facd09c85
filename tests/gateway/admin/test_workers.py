"""Drained replicas get no new requests, at any gateway and whatever their kind, until they are taken back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from aiohttp import web

from gateway.upstream.drained import ABSENT_S, DRAINED_KEY
from router.fleet import usable_members
from tests.gateway.upstream.test_registry import register, registration
from tests.support.gateways import Gateway, eventually, make_settings, running_gateway
from tests.support.members import pools, serving_member, stream_of
from tests.support.valkey import ValkeyProcess


async def hold(_request: web.Request) -> web.StreamResponse:
    return web.json_response({})


@asynccontextmanager
async def two_gateways(tmp_path: Path, redis_url: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Of one platform, over a listed worker, `own`, and a foreign server."""
    async with serving_member(hold, worker_id="own") as own, serving_member(hold) as foreign:
        listed = pools({"url": own, "engine": "tiergate"}, {"url": f"{foreign}/", "engine": "openai"})
        first = make_settings(tmp_path, redis_url, pools=listed)
        database = {"database_url": first.sql_url, "data_dir": tmp_path / "second"}
        async with (
            running_gateway(first) as one,
            running_gateway(make_settings(tmp_path, redis_url, pools=listed, **database)) as other,
        ):
            yield one, other


def usable(gateway: Gateway) -> set[str]:
    return {member.worker_id for member in usable_members(gateway.services.registry.fleet.pools["small"])}


async def patch(gateway: Gateway, worker_id: str, *, is_drained: bool) -> httpx.Response:
    return await gateway.admin.patch(f"/workers/{quote(worker_id, safe='')}", json={"is_drained": is_drained})


async def audited(gateway: Gateway) -> list[tuple[str, str]]:
    rows = (await gateway.admin.get("/audit", params={"limit": 100})).json()["data"]
    return sorted((row["action"], row["object_id"]) for row in rows if row["action"].startswith("worker."))


async def test_a_drained_replica_gets_nothing_at_any_gateway_until_it_is_taken_back(
    tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    async with two_gateways(tmp_path, own_valkey.url) as (one, other):
        await register(one, registration("registered", url="http://127.0.0.1:9"))
        await eventually(lambda: len(usable(one)) == len(usable(other)) == 3)
        everybody = usable(one)
        for worker_id in sorted(everybody):
            drained = await patch(one, worker_id, is_drained=True)
            assert (drained.status_code, drained.json()["is_drained"]) == (200, True)
            assert drained.json()["is_healthy"], "it is well, and not wanted"
            await register(one, registration("registered", url="http://127.0.0.1:9"))
            await eventually(lambda gone=worker_id: usable(one) == usable(other) == everybody - {gone})  # type: ignore[misc]
            back = await patch(other, worker_id, is_drained=False)
            assert (back.status_code, back.json()["is_drained"]) == (200, False)
            await register(one, registration("registered", url="http://127.0.0.1:9"))
            await eventually(lambda: usable(one) == usable(other) == everybody)
        await patch(one, "own", is_drained=False)
        expected = [(action, name) for name in everybody for action in ("worker.drain", "worker.undrain")]
        assert await audited(one) == sorted(expected), "what changes nothing is not audited"


async def test_a_worker_that_is_restarted_stays_drained(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        await register(gateway, registration("before", url="http://127.0.0.1:9"))
        await patch(gateway, "before", is_drained=True)
        await register(gateway, registration("after", url="http://127.0.0.1:9"))
        await register(gateway, registration("elsewhere", url="http://127.0.0.1:10"))
        assert usable(gateway) == {"elsewhere"}


async def test_requests_go_to_the_others_and_nowhere_when_all_are_drained(
    tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    said = stream_of(b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n')
    async with serving_member(said) as url:
        listed = pools({"url": url, "engine": "openai", "model": "m"})
        async with running_gateway(make_settings(tmp_path, own_valkey.url, pools=listed)) as gateway:
            key = await gateway.make_key()
            await eventually(lambda: usable(gateway) == {url})
            await patch(gateway, url, is_drained=True)
            async with gateway.client(key) as client:
                body: Any = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}
                reply = await client.post("/chat/completions", json=body)
            assert reply.status_code == 503


async def test_nobody_is_drained_without_redis_and_nothing_is_audited(
    tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        await register(gateway, registration("w"))
        own_valkey.stop()
        assert (await patch(gateway, "w", is_drained=True)).status_code == 503
        assert usable(gateway) == {"w"} and await audited(gateway) == []


async def test_addresses_long_gone_are_forgotten(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        registry: Any = gateway.services.registry
        await register(gateway, registration("w"))
        redis = registry.drained._redis
        await redis.hset(DRAINED_KEY, "http://gone", "0")
        await redis.hset(DRAINED_KEY, "http://nonsense", "x")
        await registry.refresh()
        assert ABSENT_S > 0 and registry.drained.has("http://gone/")
        await register(gateway, registration("w"))
        await patch(gateway, "w", is_drained=True)
        assert await redis.hkeys(DRAINED_KEY) == [b"http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("worker_id", "body", "status"),
    [("nobody", {"is_drained": True}, 404), ("w", {}, 400), ("w", {"is_drained": "yes"}, 400), ("w", {"x": 1}, 400)],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, own_valkey: ValkeyProcess, worker_id: str, body: dict[str, Any], status: int
) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        await register(gateway, registration("w"))
        assert (await gateway.admin.patch(f"/workers/{worker_id}", json=body)).status_code == status
