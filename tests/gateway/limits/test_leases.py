"""Leases live as long as their gateway keeps them, and what a dead one held is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from gateway.clock import utc_now
from gateway.http.errors import LimitReached
from gateway.limits.leases import LeaseKeeper
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Admission
from gateway.redis_client import connect_redis
from tests.support.limiters import KnownLedger
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

LEASE_S = 0.3


@asynccontextmanager
async def open_gateway(valkey: ValkeyProcess) -> AsyncIterator[tuple[Limiter, LeaseKeeper]]:
    redis = connect_redis(valkey.url, deadline_s=5.0)
    limiter = Limiter(redis, KnownLedger(), deadline_s=5.0, lease_s=LEASE_S)
    keeper = LeaseKeeper(redis, limiter, incarnation=uuid4().hex, deadline_s=5.0, lease_s=LEASE_S, orphan_s=LEASE_S)
    try:
        yield limiter, keeper
    finally:
        await redis.aclose()


def admission(tenant_id: UUID, *, tokens: int = 1) -> Admission:
    tier = make_tier(concurrency=1, tokens_per_day=100)
    return Admission(str(uuid4()), tenant_id, tier, tokens, 0, utc_now())


async def is_refused(limiter: Limiter, tenant_id: UUID) -> bool:
    try:
        limiter.refund_soon(await limiter.admit(admission(tenant_id)))
    except LimitReached:
        return True
    await limiter.settlements.drain_once()
    return False


async def test_a_renewed_lease_outlives_its_term(valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(valkey) as (limiter, keeper), open_gateway(valkey) as (other, _):
        await limiter.admit(admission(tenant_id))
        deadline = asyncio.get_running_loop().time() + 3 * LEASE_S
        while asyncio.get_running_loop().time() < deadline:
            await keeper.renew()
            assert await is_refused(other, tenant_id)


async def test_what_a_dead_gateway_held_of_the_day_comes_back(valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(valkey) as (dead, _):
        await dead.admit(admission(tenant_id, tokens=100))
    async with open_gateway(valkey) as (limiter, keeper), asyncio.timeout(20):
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id))
        while await is_refused(limiter, tenant_id):
            await keeper.sweep(tenant_id)
            await limiter.settlements.drain_once()


async def test_a_live_gateways_holdings_are_not_swept(valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(valkey) as (limiter, keeper):
        await limiter.admit(admission(tenant_id, tokens=100))
        deadline = asyncio.get_running_loop().time() + 3 * LEASE_S
        while asyncio.get_running_loop().time() < deadline:
            await keeper.renew()
            await keeper.sweep(tenant_id)
            assert len(limiter.settlements) == 0


async def test_gateways_know_how_many_share_the_limits(valkey: ValkeyProcess) -> None:
    async with open_gateway(valkey) as (limiter, keeper), open_gateway(valkey) as (_, other):
        await keeper.beat()
        before = limiter.local.num_gateways
        await other.beat()
        await keeper.beat()
        assert limiter.local.num_gateways == before + 1
        await other.leave()
        await keeper.leave()
