"""Who is alive: signed registrations, for as long as they are renewed; the last picture while Redis is away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.redis_client import connect_redis
from gateway.upstream.sightings import REMEMBERED_S
from protocol.load import STALE_AFTER_S, WORKERS_KEY, LoadReport, Registration, seal
from router.fleet import usable_members
from tests.support.gateways import WORKER_KEY, Gateway, eventually, make_settings, running_gateway
from tests.support.members import serving_path
from tests.support.valkey import ValkeyProcess


@asynccontextmanager
async def gateway_over(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    settings = make_settings(tmp_path, valkey.url, redis_deadline_ms=250)
    async with running_gateway(settings) as gateway:
        yield gateway


def registration(worker_id: str, *, age_s: float = 0.0, url: str = "http://127.0.0.1:9", **fields: Any) -> Registration:
    report = LoadReport(
        worker_id=worker_id,
        model="m",
        model_version="v",
        pool="small",
        adapters=(),
        num_running=0,
        num_waiting=0,
        max_num_seqs=8,
        max_waiting=8,
        max_model_len=512,
        num_blocks=8,
        num_free_blocks=8,
        block_size=16,
        is_draining=False,
        prompt_tokens_total=0,
        completion_tokens_total=0,
        discarded_tokens_total=0,
    )
    report = msgspec.structs.replace(report, **fields)
    return Registration(url=url, sent_at_ms=int((time.time() - age_s) * 1000), load=report)


async def register(gateway: Gateway, sent: Registration, *, key: str = WORKER_KEY, name: str | None = None) -> None:
    redis: Any = connect_redis(gateway.services.settings.redis_url, deadline_s=5)
    await redis.hset(WORKERS_KEY, name or sent.load.worker_id, seal(sent, worker_key=key))
    await redis.aclose()
    await gateway.services.registry.refresh()


def known(gateway: Gateway) -> set[str]:
    pool = gateway.services.registry.fleet.pools.get("small")
    return {member.worker_id for member in pool.members} if pool else set()


async def test_only_registrations_with_our_signature_are_taken(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await register(gateway, registration("good"))
        await register(gateway, registration("evil"), key="another key")
        assert known(gateway) == {"good"}


async def test_a_worker_long_dead_is_not_taken_for_alive(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await register(gateway, registration("dead", age_s=STALE_AFTER_S + 1))
        assert known(gateway) == set()


async def test_the_long_dead_are_removed_from_redis(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        dead = registration("dead", age_s=REMEMBERED_S + 10)
        await register(gateway, dead)
        sightings = gateway.services.registry._sightings
        assert sightings is not None
        # As if it had stood there for long.
        sightings._old["dead"] = (dead.sent_at_ms, float("-inf"))
        await register(gateway, registration("good"))
        redis: Any = connect_redis(gateway.services.settings.redis_url, deadline_s=5)
        assert await redis.hkeys(WORKERS_KEY) == [b"good"]
        await redis.aclose()


async def test_a_pools_window_is_its_narrowest_members(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await gateway.post("/models", {"id": "m", "pool": "small", "context_window": 400})
        await register(gateway, registration("wide", max_model_len=512))
        assert gateway.services.registry.fleet.pools["small"].context_window == 400
        await register(gateway, registration("narrow", max_model_len=256))
        assert gateway.services.registry.fleet.pools["small"].context_window == 256


async def test_the_last_picture_stands_while_redis_is_away_and_empty_again(
    tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await register(gateway, registration("w"))
        own_valkey.stop()
        await gateway.services.registry.refresh()
        assert known(gateway) == {"w"}
        own_valkey.start()
        await gateway.services.registry.refresh()
        assert known(gateway) == {"w"}


async def test_a_worker_that_failed_comes_back_once_it_completes_something(
    tmp_path: Path, own_valkey: ValkeyProcess
) -> None:
    is_well = asyncio.Event()

    async def ready(_request: web.Request) -> web.Response:
        return web.Response(status=200 if is_well.is_set() else 503)

    async with serving_path("/ready", ready) as url, gateway_over(tmp_path, own_valkey) as gateway:
        registry = gateway.services.registry
        await register(gateway, registration("w", url=url))
        registry.note_failure("w", is_fatal=True)
        assert usable_members(registry.fleet.pools["small"]) == ()
        await eventually(lambda: registry.health.state("w", time.monotonic()) == "half-open")
        assert usable_members(registry.fleet.pools["small"]) == ()
        is_well.set()
        await eventually(lambda: usable_members(registry.fleet.pools["small"]))
        [member] = usable_members(registry.fleet.pools["small"])
        assert member.weight < 1, "it starts slowly"


async def test_what_is_written_back_proves_no_life(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        older, newer = registration("w", age_s=0.5), registration("w")
        await register(gateway, newer)
        sightings = gateway.services.registry._sightings
        assert sightings is not None
        sightings._sightings["w"].changed_at -= STALE_AFTER_S + 1
        await register(gateway, older)
        assert known(gateway) == set()
        await register(gateway, newer)
        assert known(gateway) == set(), "it was seen before it went"
        await register(gateway, registration("w"))
        assert known(gateway) == {"w"}


async def test_a_worker_that_was_restarted_is_there_once(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await register(gateway, registration("before", age_s=1.0))
        await register(gateway, registration("after"))
        assert known(gateway) == {"after"}


@pytest.mark.parametrize(
    "change",
    [
        {"url": "file:///etc/passwd"},
        {"url": "http://"},
        {"age_s": -3600.0},
        {"age_s": 3600.0},
        {"num_waiting": -1},
        {"max_model_len": 0},
        {"num_free_blocks": 2**60},
    ],
    ids=str,
)
async def test_nonsense_is_not_taken_and_said_once(
    tmp_path: Path, own_valkey: ValkeyProcess, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        for _ in range(3):
            await register(gateway, registration("odd", **change))
        assert known(gateway) == set()
        assert sum("'odd' is not taken" in message for message in caplog.messages) == 1


async def test_one_worker_cannot_register_as_another(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        await register(gateway, registration("w"), name="other")
        assert known(gateway) == set()


async def test_the_load_beside_an_answer_is_newer_than_the_report(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        registry = gateway.services.registry
        await register(gateway, registration("w"))
        for header, expected in ((b"3,2,1,0", (3, 2, 1)), (b"nonsense", (3, 2, 1)), (b"-1,2,1,0", (3, 2, 1))):
            registry.told_loads.note("w", header)
            registry.redraw()
            [member] = registry.fleet.pools["small"].members
            assert member.load is not None
            assert (member.load.num_running, member.load.num_waiting, member.load.num_free_blocks) == expected
        registry.told_loads.note("w", b"0,0,8,1")
        registry.redraw()
        assert usable_members(registry.fleet.pools["small"]) == (), "it drains"


async def test_requests_are_answered_while_redis_is_away_and_say_so(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with gateway_over(tmp_path, own_valkey) as gateway:
        key = await gateway.make_key()
        await register(gateway, registration("w"))
        own_valkey.stop()
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}
        async with gateway.client(key) as client:
            started = time.monotonic()
            reply = await client.post("/chat/completions", json=body)
        # Nothing listens at the worker's address, so 502 is as far as it gets; what matters is that it got there.
        assert (reply.status_code, reply.headers["x-tiergate-limiter"]) == (502, "local")
        assert time.monotonic() - started < 10
