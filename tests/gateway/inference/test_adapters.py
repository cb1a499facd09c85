"""An adapter goes to replicas that hold it, and its name at the workers stays there."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aiohttp import web
from redis import Redis

from protocol.load import WORKERS_KEY, Registration, seal
from tests.support.gateways import Gateway, eventually, make_settings, running_gateway
from tests.support.members import Handler, pools, serving_member
from tests.support.valkey import ValkeyProcess

PRIVATE = "tenant-7-private-name"


@asynccontextmanager
async def gateway_before(
    tmp_path: Path, valkey: ValkeyProcess, *members: tuple[Handler, tuple[str, ...]]
) -> AsyncIterator[Gateway]:
    """A gateway whose pool has members that hold these adapters; the first is the least loaded."""
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(
                serving_member(handler, worker_id=f"w{i}", num_waiting=i, adapters=adapters)
            )
            for i, (handler, adapters) in enumerate(members)
        ]
        fields = {"pools": pools(*({"url": url} for url in urls)), "worker_key": "key-of-these-members"}
        gateway = await stack.enter_async_context(running_gateway(make_settings(tmp_path, valkey.url, **fields)))
        await gateway.post("/adapters", {"name": "pirate", "variants": {"m": PRIVATE}})
        yield gateway


async def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    body = {"model": "pirate", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}
    async with gateway.client(await gateway.make_key()) as client:
        return await client.post("/chat/completions", json=body | fields)


async def must_not_be_asked(_request: web.Request) -> web.StreamResponse:
    raise AssertionError("this member does not hold the adapter")


async def tell_model(request: web.Request) -> web.StreamResponse:
    assert (await request.json())["model"] == PRIVATE
    return web.json_response({"error": {"message": "asked", "type": "invalid_request_error"}}, status=418)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_adapter_that_nobody_holds_is_503_under_the_clients_own_name(
    tmp_path: Path, valkey: ValkeyProcess, *, stream: bool
) -> None:
    async with gateway_before(tmp_path, valkey, (must_not_be_asked, ()), (must_not_be_asked, ("pirate",))) as gateway:
        reply = await ask(gateway, stream=stream)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
    assert "'pirate'" in reply.json()["error"]["message"]
    assert PRIVATE not in reply.text + str(reply.headers)


async def test_only_the_replica_that_holds_the_adapter_is_asked(tmp_path: Path, valkey: ValkeyProcess) -> None:
    members = [(must_not_be_asked, ()), (tell_model, (PRIVATE,))]
    async with gateway_before(tmp_path, valkey, *members) as gateway:
        assert (await ask(gateway)).status_code == 418


async def test_a_worker_that_registers_a_model_by_an_adapters_name_does_not_get_its_requests(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with gateway_before(tmp_path, valkey, (tell_model, (PRIVATE,))) as gateway:
        [member] = gateway.services.registry.fleet.pools["small"].members
        assert member.load is not None
        load = msgspec.structs.replace(member.load, worker_id="stranger", model="pirate", pool=None, adapters=())
        told = Registration(url="http://127.0.0.1:9", sent_at_ms=time.time_ns() // 1_000_000, load=load)
        with Redis.from_url(valkey.url) as redis:
            redis.hset(WORKERS_KEY, "stranger", seal(told, worker_key="key-of-these-members"))
            try:
                await eventually(lambda: "pirate" in gateway.services.registry.fleet.pools)
                assert (await ask(gateway)).status_code == 418
            finally:
                redis.hdel(WORKERS_KEY, "stranger")


ERROR = {"message": "the store is away", "type": "overloaded_error", "param": None, "code": "adapter_unavailable"}


async def cannot_load(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": ERROR}, status=503)


async def cannot_load_after_waiting(request: web.Request) -> web.StreamResponse:
    """As a worker of ours tells it to a request that waited: in the stream that has begun."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b": waiting position=1\n\ndata: " + json.dumps({"error": ERROR}).encode() + b"\n\n")
    await answer.write_eof()
    return answer


@pytest.mark.parametrize("handler", [cannot_load, cannot_load_after_waiting])
async def test_a_member_that_cannot_load_an_adapter_is_no_worse_for_others(
    tmp_path: Path, valkey: ValkeyProcess, handler: Handler
) -> None:
    async with gateway_before(tmp_path, valkey, (handler, (PRIVATE,))) as gateway:
        for _ in range(8):
            reply = await ask(gateway, stream=True)
            # Who was told that he waits has an answer that has begun, which the error then ends.
            told = reply.text.rpartition("data: ")[2]
            assert json.loads(told)["error"]["code"] == "unavailable", reply.text
            assert reply.status_code == (503 if handler is cannot_load else 200)
            assert PRIVATE not in reply.text
        [shown] = (await gateway.admin.get("/workers")).json()["data"]
        assert (shown["is_healthy"], shown["state"]) == (True, "closed")
