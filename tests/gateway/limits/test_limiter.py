"""Limits against a real Valkey: nothing exceeds them, and what was not used comes back."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.crc import key_slot

from gateway.domain.limits import LimitScope, ScopeLimits
from gateway.http.errors import LimitReached, Unavailable
from gateway.limits.commands import held_key
from gateway.limits.reservation import Reservation
from gateway.redis_client import connect_redis
from tests.support.limiters import KnownLedger, admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess


async def test_concurrent_admissions_from_two_gateways_never_exceed_a_limit(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=30)
    async with open_limiter(valkey.url) as one, open_limiter(valkey.url) as two:
        tries = [limiter.admit(admission(tenant_id, tier)) for limiter in (one, two) for _ in range(50)]
        results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Reservation) for result in results) == 30
    assert all(result.code == "requests_per_minute" for result in results if isinstance(result, LimitReached))


@pytest.mark.parametrize("limited", ["key:k1", "user:al ice", "user:" + "ü" * 500])
async def test_a_race_of_hundreds_never_exceeds_a_keys_or_an_end_users_limit(
    valkey: ValkeyProcess, limited: str
) -> None:
    """The other scopes have room, and count what passed."""
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=1000)
    binding = LimitScope(limited, ScopeLimits(requests_per_minute=30))
    wide = LimitScope("key:wide", ScopeLimits(requests_per_minute=1000, tokens_per_day=10_000))
    async with open_limiter(valkey.url) as one, open_limiter(valkey.url) as two:
        tries = [limiter.admit(admission(tenant_id, tier, wide, binding)) for limiter in (one, two) for _ in range(200)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        [tenant, broad, narrow] = await one.usage_now(admission(tenant_id, tier, wide, binding))
    assert sum(isinstance(result, Reservation) for result in results) == 30
    refused = [result for result in results if isinstance(result, LimitReached)]
    assert {(each.scope, each.code) for each in refused} == {(limited, "requests_per_minute")}
    assert len(refused) == 370
    assert (tenant.num_requests, broad.num_requests, narrow.num_requests) == (30, 30, 30)
    assert broad.tokens_today == 30


async def test_a_race_of_hundreds_never_exceeds_a_keys_budget(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=10**9)
    key = LimitScope("key:k1", ScopeLimits(budget_nanousd_per_month=1000, concurrency=500))
    async with open_limiter(valkey.url) as one, open_limiter(valkey.url) as two:
        asked = [
            (limiter, admission(tenant_id, tier, key, cost_nanousd=30)) for limiter in (one, two) for _ in range(150)
        ]
        results = await asyncio.gather(*(limiter.admit(each) for limiter, each in asked), return_exceptions=True)
    assert sum(isinstance(result, Reservation) for result in results) == 1000 // 30
    assert {each.code for each in results if isinstance(each, LimitReached)} == {"budget"}


async def test_end_users_that_nobody_knows_cost_redis_little_and_not_for_long(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=50)
    limits = ScopeLimits(requests_per_minute=5, tokens_per_day=100)
    ledger = KnownLedger()
    async with open_limiter(valkey.url, ledger=ledger) as limiter:
        for number in range(80):
            asked = admission(tenant_id, tier, LimitScope(f"user:{'x' * 500}{number}", limits))
            with contextlib.suppress(LimitReached):
                await limiter.admit(asked)
    # Who is refused by the tenant's own limit has not asked the ledger.
    assert ledger.num_calls == 50
    redis: Any = connect_redis(valkey.url, deadline_s=5)
    keys = [key async for key in redis.scan_iter(f"*{tenant_id}*:limits:user:*", count=1000)]
    assert len(keys) == 50
    assert max(map(len, keys)) < 200
    assert all([0 < await redis.ttl(key) <= 1800 for key in keys])
    await redis.aclose()


async def test_a_refused_request_passes_after_what_retry_after_says_and_not_before(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=2)
    async with open_limiter(valkey.url, window_s=0.5) as limiter:
        started = time.monotonic()
        await limiter.admit(admission(tenant_id, tier))
        await limiter.admit(admission(tenant_id, tier))
        while True:
            try:
                await limiter.admit(admission(tenant_id, tier))
                break
            except LimitReached as refused:
                assert 0 < refused.retry_after_s <= 0.5
                await asyncio.sleep(refused.retry_after_s)  # the claim is about time itself
    assert time.monotonic() - started >= 0.5


async def test_no_window_wherever_it_begins_sees_more_than_the_limit(valkey: ValkeyProcess) -> None:
    tenant_id, tier, window_s = uuid4(), make_tier(requests_per_minute=20), 0.3
    admitted_at = []
    async with open_limiter(valkey.url, window_s=window_s) as limiter:
        deadline = time.monotonic() + 4 * window_s
        while time.monotonic() < deadline:
            # Both ends are taken so that the interval between two admissions is never seen too short.
            before = time.monotonic()
            try:
                await limiter.admit(admission(tenant_id, tier))
                admitted_at.append((before, time.monotonic()))
            except LimitReached:
                await asyncio.sleep(0.005)
    assert len(admitted_at) > 40
    for first, last in zip(admitted_at, admitted_at[20:], strict=False):
        assert last[1] - first[0] >= window_s


async def test_tokens_a_minute_count_the_reservation_and_then_the_actual_figure(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(tokens_per_minute=100)
    async with open_limiter(valkey.url) as limiter:
        reservation = await limiter.admit(admission(tenant_id, tier, tokens=80))
        with pytest.raises(LimitReached) as refused:
            await limiter.admit(admission(tenant_id, tier, tokens=30))
        assert refused.value.code == "tokens_per_minute"
        assert refused.value.headers()["x-ratelimit-remaining-tokens"] == "20"
        await limiter.settle(reservation, tokens=10, cost_nanousd=0)
        again = await limiter.admit(admission(tenant_id, tier, tokens=90))
    assert again.standing.num_tokens == 100


async def test_more_tokens_than_ever_fit_are_refused_with_what_to_change(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        with pytest.raises(LimitReached, match="lower max_tokens"):
            await limiter.admit(admission(uuid4(), make_tier(tokens_per_minute=100), tokens=101))


async def test_concurrency_counts_what_is_under_way(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(concurrency=2)
    async with open_limiter(valkey.url) as limiter:
        first = await limiter.admit(admission(tenant_id, tier))
        await limiter.admit(admission(tenant_id, tier))
        with pytest.raises(LimitReached) as refused:
            await limiter.admit(admission(tenant_id, tier))
        assert refused.value.code == "concurrency"
        await limiter.settle(first, tokens=1, cost_nanousd=0)
        await limiter.admit(admission(tenant_id, tier))


async def test_a_refund_leaves_nothing_behind(valkey: ValkeyProcess) -> None:
    tier = make_tier(
        requests_per_minute=1,
        tokens_per_minute=10,
        concurrency=1,
        tokens_per_day=10,
        budget_nanousd_per_month=10,
    )
    tenant_id = uuid4()
    async with open_limiter(valkey.url) as limiter:
        for _ in range(3):
            reservation = await limiter.admit(admission(tenant_id, tier, tokens=10, cost_nanousd=10))
            limiter.refund_soon(reservation)
            await limiter.settlements.drain_once()


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("requests_per_minute", 1),
        ("tokens_per_minute", 5),
        ("concurrency", 1),
        ("tokens_per_day", 5),
        ("budget_nanousd_per_month", 9),
    ],
)
async def test_a_refusal_by_redis_leaves_nothing_counted_here(valkey: ValkeyProcess, limit: str, value: int) -> None:
    """Or else the gateway would have too little left once it decides alone."""
    tenant_id, tier = uuid4(), make_tier(**{limit: value})
    key = LimitScope("key:k1", ScopeLimits(concurrency=100))
    async with open_limiter(valkey.url) as limiter:
        admitted = await limiter.admit(admission(tenant_id, tier, key, tokens=3, cost_nanousd=5))
        refused = admission(tenant_id, tier, key, tokens=3, cost_nanousd=5)
        with pytest.raises(LimitReached):
            await limiter.admit(refused)
        assert limiter.num_decided_here == 0
        counted = [
            (each.num_requests, each.tokens, each.num_live, each.live_tokens, each.live_nanousd)
            for each in limiter.local.accounts_of(refused)
        ]
        assert counted == [(1, 3, 1, 3, 5)] * 2
        assert list(limiter.local.live) == [admitted.admission.request_id]
        assert not limiter.local.untold


@pytest.mark.parametrize("limit", ["tokens_per_day", "budget_nanousd_per_month"])
async def test_a_counter_that_redis_lost_is_loaded_from_the_ledger_once(valkey: ValkeyProcess, limit: str) -> None:
    tenant_id, tier = uuid4(), make_tier(**{limit: 100})
    ledger = KnownLedger(tokens=95, nanousd=95)
    async with open_limiter(valkey.url, ledger=ledger) as limiter:
        await limiter.admit(admission(tenant_id, tier, tokens=4, cost_nanousd=4))
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, tokens=2, cost_nanousd=2))
    assert ledger.num_calls == 1


async def test_a_budget_that_nobody_can_check_is_not_taken_for_unspent(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url, ledger=KnownLedger(is_away=True)) as limiter:
        with pytest.raises(Unavailable):
            await limiter.admit(admission(uuid4(), make_tier(budget_nanousd_per_month=10**9)))


async def test_settling_twice_counts_once(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(tokens_per_day=100)
    async with open_limiter(valkey.url) as limiter:
        reservation = await limiter.admit(admission(tenant_id, tier, tokens=50))
        await limiter.settle(reservation, tokens=40, cost_nanousd=0)
        await limiter.settle(reservation, tokens=40, cost_nanousd=0)
        await limiter.admit(admission(tenant_id, tier, tokens=60))
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, tokens=1))


async def test_a_budget_key_that_was_seeded_and_then_refused_expires(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=100)
    async with open_limiter(valkey.url, ledger=KnownLedger(nanousd=100)) as limiter:
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, cost_nanousd=1))
    redis: Any = connect_redis(valkey.url, deadline_s=5)
    keys = await redis.keys(f"*{tenant_id}*")
    assert len(keys) == 1
    assert all([await redis.ttl(key) > 0 for key in keys])
    await redis.aclose()


async def test_what_a_gateway_holds_expires_even_if_nobody_looks_after_it(valkey: ValkeyProcess) -> None:
    asked = admission(uuid4(), make_tier(concurrency=5))
    async with open_limiter(valkey.url, incarnation="a") as limiter:
        await limiter.admit(asked)
        with Redis.from_url(valkey.url) as redis:
            assert int(redis.ttl(held_key(asked.tenant_id, "a"))) > 0  # type: ignore[arg-type]


async def test_only_a_request_after_another_lone_one_is_asked_about_at_once(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_limiter(valkey.url) as limiter:
        seen: list[bool] = []
        send_step = limiter.redis.send_step

        def recording(*args: Any, at_once: bool, **options: Any) -> Any:
            seen.append(at_once)
            return send_step(*args, at_once=at_once, **options)

        monkeypatch.setattr(limiter.redis, "send_step", recording)
        for num_together in (1, 1, 2, 1, 1):
            asked = [admission(uuid4(), make_tier()) for _ in range(num_together)]
            for reservation in await asyncio.gather(*map(limiter.admit, asked)):
                limiter.local.close(reservation.entry, 1, 0)
    assert seen == [False, True, True, False, False, True]


async def test_all_scopes_have_room_or_nothing_is_reserved(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=4)
    alice = LimitScope("user:al ice=3", ScopeLimits(requests_per_minute=1, tokens_per_day=100))
    key = LimitScope("key:k1", ScopeLimits(concurrency=2))
    async with open_limiter(valkey.url) as limiter:
        first = await limiter.admit(admission(tenant_id, tier, key, alice))
        with pytest.raises(LimitReached, match="this user") as refused:
            await limiter.admit(admission(tenant_id, tier, key, alice))
        assert (refused.value.scope, refused.value.code) == (alice.name, "requests_per_minute")
        second = await limiter.admit(admission(tenant_id, tier, key))
        with pytest.raises(LimitReached, match="this key") as refused:
            await limiter.admit(admission(tenant_id, tier, key))
        assert (refused.value.scope, refused.value.code) == (key.name, "concurrency")
        for reservation in (first, second):
            await limiter.settle(reservation, tokens=1, cost_nanousd=0)
        third = await limiter.admit(admission(tenant_id, tier, key))
        assert third.standing.num_requests == 3
        await limiter.admit(admission(tenant_id, tier, key))
        with pytest.raises(LimitReached, match="tier test") as refused:
            await limiter.admit(admission(tenant_id, tier))
        assert refused.value.scope == "tenant"


async def test_a_cancelled_request_gives_back_what_it_was_about_to_get(valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(concurrency=1, tokens_per_day=1)
    async with open_limiter(valkey.url) as limiter:
        asking = asyncio.create_task(limiter.admit(admission(tenant_id, tier)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        await limiter.admit(admission(tenant_id, tier))


async def test_a_server_that_forgot_our_scripts_is_given_them_again(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        async with open_limiter(valkey.url) as limiter:
            await limiter.redis.execute("SCRIPT", "FLUSH")
            reservations = await asyncio.gather(
                *(limiter.admit(admission(uuid4(), make_tier(concurrency=1))) for _ in range(10))
            )
            assert not any(reservation.standing.is_local for reservation in reservations)
    finally:
        valkey.stop()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=30),
    limit=st.integers(40, 200),
)
def test_spent_never_exceeds_the_daily_quota(
    valkey: ValkeyProcess, requests: list[tuple[int, int]], limit: int
) -> None:
    async def run() -> None:
        tenant_id, tier = uuid4(), make_tier(tokens_per_day=limit)
        spent = 0
        async with open_limiter(valkey.url) as limiter:
            for reserved, actual in requests:
                try:
                    reservation = await limiter.admit(admission(tenant_id, tier, tokens=reserved))
                except LimitReached:
                    assert spent + reserved > limit
                    continue
                spent += min(reserved, actual)
                await limiter.settle(reservation, tokens=min(reserved, actual), cost_nanousd=0)
        assert spent <= limit

    asyncio.run(run())


async def test_all_keys_of_a_tenant_lie_in_one_slot_of_a_cluster(valkey: ValkeyProcess) -> None:
    """Whatever its end users are called: a script's keys must be in one place."""
    tier = make_tier(requests_per_minute=5, tokens_per_day=100)
    limits = ScopeLimits(requests_per_minute=5, concurrency=9)
    tenant_id, users = uuid4(), ("user:{other}", "user:}{", "user:{}", "user:a b", "user:" + "{x}" * 100)
    async with open_limiter(valkey.url) as limiter:
        for user in users:
            scopes = (LimitScope("key:k", limits), LimitScope(user, limits))
            await limiter.admit(admission(tenant_id, tier, *scopes))
        with Redis.from_url(valkey.url) as redis:
            keys = [key for key in redis.keys("*") if str(tenant_id).encode() in key]  # type: ignore[union-attr]
    assert len(keys) >= 2 + len(users)
    assert len({key_slot(key) for key in keys}) == 1, keys
