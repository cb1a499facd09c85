"""Redis away: local limits at this gateway's share, nothing hangs, and Redis is used again when it is back."""

import asyncio
import time
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.http.errors import LimitReached, Unavailable
from gateway.limits.limiter import Limiter
from gateway.redis_client import connect_redis
from tests.support.limiters import KnownLedger, admission
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess


async def test_an_outage_is_survived_at_a_share_of_the_limits(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    redis = connect_redis(valkey.url, deadline_s=0.25)
    limiter = Limiter(redis, KnownLedger(), deadline_s=0.25)
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=10)
    try:
        before = [await limiter.admit(admission(tenant_id, tier)) for _ in range(2)]
        assert not any(reservation.standing.is_local for reservation in before)
        valkey.stop()
        limiter.local.num_gateways = 2
        during = [await limiter.admit(admission(tenant_id, tier)) for _ in range(3)]
        assert all(reservation.standing.is_local for reservation in during)
        assert during[0].standing.headers(tier)["x-tiergate-limiter"] == "local"
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier))
        for reservation in before + during:
            await limiter.settle(reservation, tokens=1, cost_nanousd=0)
        assert len(limiter.settlements) == 5
        valkey.start()
        async with asyncio.timeout(10):
            while (await limiter.admit(admission(uuid4(), tier))).standing.is_local:  # noqa: ASYNC110  (polls another process)
                await asyncio.sleep(0.05)
            while len(limiter.settlements):
                await limiter.settlements.drain_once()
    finally:
        await redis.aclose()
        valkey.stop()


async def test_a_budget_holds_without_redis_for_requests_that_run_at_once() -> None:
    redis = connect_redis("redis://127.0.0.1:1/0", deadline_s=0.25)
    limiter = Limiter(redis, KnownLedger(nanousd=40), deadline_s=0.25)
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=100)
    try:
        tries = [limiter.admit(admission(tenant_id, tier, cost_nanousd=25)) for _ in range(5)]
        results = await asyncio.gather(*tries, return_exceptions=True)
    finally:
        await redis.aclose()
    assert [getattr(result, "code", "ok") for result in results] == ["ok", "ok", "budget", "budget", "budget"]


async def test_what_a_hanging_redis_reserves_late_for_a_refused_request_comes_back(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    redis = connect_redis(valkey.url, deadline_s=0.5)
    ledger = KnownLedger()
    limiter = Limiter(redis, ledger, deadline_s=0.5)
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=100)
    try:
        await limiter.admit(admission(tenant_id, tier, cost_nanousd=20))
        valkey.pause()
        ledger.is_away = True
        with pytest.raises(Unavailable):
            await limiter.admit(admission(tenant_id, tier, cost_nanousd=40))
        valkey.resume()
        async with asyncio.timeout(10):
            while limiter.is_local or len(limiter.settlements):
                await limiter.settlements.drain_once()
                await asyncio.sleep(0.05)
        reservation = await limiter.admit(admission(tenant_id, tier, cost_nanousd=80))
        assert not reservation.standing.is_local
    finally:
        await redis.aclose()
        valkey.stop()


async def test_a_redis_that_accepts_and_never_answers_costs_one_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    redis = connect_redis(f"redis://127.0.0.1:{port}/0", deadline_s=0.1)
    limiter = Limiter(redis, KnownLedger(), deadline_s=0.1)
    try:
        started = time.monotonic()
        for _ in range(20):
            reservation = await limiter.admit(admission(uuid4(), make_tier(requests_per_minute=5)))
            assert reservation.standing.is_local
        assert time.monotonic() - started < 0.8
    finally:
        await redis.aclose()
        server.close()
        await server.wait_closed()
