"""The window when Valkey's clock is set back, which is the same as a window whose times lie ahead."""

import asyncio
import struct
import time
from uuid import UUID, uuid4

import pytest
from redis import Redis

from gateway.http.errors import LimitReached
from gateway.limits.leases import LeaseKeeper
from gateway.limits.presence import BEATS_KEY
from tests.support.limiters import admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

HOUR_US = 3_600_000_000


def put_ahead(url: str, tenant_id: UUID, by_us: int) -> str:
    """Moves the tenant's window into the future. Returns its key."""
    key = f"tiergate:{{{tenant_id}}}:limits:tenant"
    with Redis.from_url(url) as redis:
        for field, packed in redis.hgetall(key).items():
            if field == b"state":
                requests, tokens, live, oldest, oldest_at, newest_at = struct.unpack("<dddddd", packed)
                state = (requests, tokens, live, oldest + by_us / 1e6, oldest_at + by_us, newest_at + by_us)
                redis.hset(key, "state", struct.pack("<dddddd", *state))
            elif field.isdigit():
                requests, tokens, at = struct.unpack("<ddd", packed)
                redis.hdel(key, field)
                redis.hset(key, str(int(field) + by_us // 1_000_000), struct.pack("<ddd", requests, tokens, at + by_us))
    return key


async def test_a_full_window_does_not_lock_out_for_as_long_as_the_clock_was_set_back(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=2)
    async with open_limiter(valkey.url) as limiter:
        for _ in range(2):
            await limiter.admit(admission(tenant_id, tier))
        put_ahead(valkey.url, tenant_id, HOUR_US)
        with pytest.raises(LimitReached) as refused:
            await limiter.admit(admission(tenant_id, tier))
        assert refused.value.retry_after_s <= 61


@pytest.mark.parametrize("by_us", [10_000_000, 90_000_000, HOUR_US])
async def test_what_passed_before_a_clock_was_set_back_counts_for_one_more_window(
    valkey: ValkeyProcess, by_us: int
) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=5, tokens_per_minute=50)
    async with open_limiter(valkey.url) as limiter:
        before = [await limiter.admit(admission(tenant_id, tier, tokens=10)) for _ in range(3)]
        key = put_ahead(valkey.url, tenant_id, by_us)
        after = [await limiter.admit(admission(tenant_id, tier, tokens=10)) for _ in range(2)]
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, tokens=10))
        for reservation in (*before, *after):
            await limiter.settle(reservation, tokens=10, cost_nanousd=0)
        with Redis.from_url(valkey.url) as redis:
            packed = {field: value for field, value in redis.hgetall(key).items() if field.isdigit()}
            state = struct.unpack("<dddddd", redis.hget(key, "state"))
        # None is left ahead, where it would be counted again when its time comes.
        assert max(map(int, packed)) <= state[3] + 2
        buckets = [struct.unpack("<ddd", value) for value in packed.values()]
        assert state[:3] == (5, 50, 0)
        assert (sum(bucket[0] for bucket in buckets), sum(bucket[1] for bucket in buckets)) == (5, 50)


async def test_a_heartbeat_that_lies_ahead_keeps_no_dead_gateway_alive(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(concurrency=1)
    async with open_limiter(own_valkey.url, incarnation="dead", lease_s=0.5) as dead:
        await LeaseKeeper(dead, data_dir=own_valkey.folder).beat()
        await dead.admit(admission(tenant_id, tier))
    with Redis.from_url(own_valkey.url) as redis:
        redis.zadd(BEATS_KEY, {"dead": time.time() * 1e6 + HOUR_US})
    async with open_limiter(own_valkey.url, incarnation="alive", lease_s=0.5) as limiter, asyncio.timeout(20):
        keeper = LeaseKeeper(limiter, data_dir=own_valkey.folder)
        while True:
            await keeper.beat()
            await keeper.sweep_dead()
            try:
                await limiter.admit(admission(tenant_id, tier))
                break
            except LimitReached:
                await asyncio.sleep(0.05)
