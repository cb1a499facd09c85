"""Day and month where the ledger has a say: it is asked seldom, read whole, and never built upon when it is old."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from redis import Redis

from gateway.billing.ledger import UsageLedger
from gateway.domain.limits import LimitScope, ScopeLimits
from gateway.http.errors import LimitReached
from gateway.limits.ledger import STALE_S, LedgerAway, Readings, Used
from gateway.limits.local import LocalLimiter
from gateway.metering.outbox import Outbox
from gateway.metering.queries import UsageQueries
from tests.support.events import make_event
from tests.support.gateways import eventually
from tests.support.limiters import KnownLedger, admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

NOBODY = "redis://127.0.0.1:1/0"


class HangingLedger(KnownLedger):
    """Hangs while told to."""

    hangs = False

    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        self.num_calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        return Used(self.tokens, self.nanousd)


async def test_without_redis_a_flood_that_a_window_refuses_does_not_ask_the_ledger() -> None:
    ledger, tier = KnownLedger(), make_tier(requests_per_minute=0, budget_nanousd_per_month=100)
    async with open_limiter(NOBODY, ledger=ledger) as limiter:
        for _ in range(20):
            with pytest.raises(LimitReached) as refused:
                await limiter.admit(admission(uuid4(), tier))
            assert refused.value.code == "requests_per_minute"
    assert ledger.num_calls == 0


async def test_a_ledger_that_hangs_is_not_waited_for_while_its_last_answer_stands() -> None:
    now_s = 0.0
    ledger, tenant_id = HangingLedger(nanousd=7), uuid4()
    readings = Readings(ledger, clock=lambda: now_s)
    local = LocalLimiter(incarnation="a", window_s=60, clock=lambda: now_s)
    asked = admission(tenant_id, make_tier(budget_nanousd_per_month=100))
    (account,) = local.accounts_of(asked)
    assert (await readings.get(tenant_id, "tenant", account, asked.now)).spent_this_month == 7
    ledger.hangs, now_s = True, STALE_S / 2
    async with asyncio.timeout(20):
        assert (await readings.get(tenant_id, "tenant", account, asked.now)).spent_this_month == 7
        # Of another day it says nothing.
        waiting = asyncio.create_task(readings.get(tenant_id, "tenant", account, asked.now + timedelta(days=1)))
        _, pending = await asyncio.wait([waiting], timeout=0.5)
        assert pending
        readings.close()
        with pytest.raises(LedgerAway):
            await waiting


async def test_a_reading_outlives_the_account_that_it_was_made_for() -> None:
    """An account that is dropped among many, and comes back, counts from zero again."""
    ledger, tenant_id, tier = KnownLedger(tokens=900), uuid4(), make_tier(tokens_per_day=1_000)
    readings = Readings(ledger)
    first, second = (LocalLimiter(incarnation="a", window_s=60) for _ in range(2))
    asked = admission(tenant_id, tier, tokens=900)
    first.close(first.enter(asked), 900, 0)
    await readings.get(tenant_id, "tenant", first.accounts_of(asked)[0], asked.now)
    more = admission(tenant_id, tier, tokens=90)
    reading = await readings.get(tenant_id, "tenant", second.accounts_of(more)[0], more.now)
    second.check(more, {"tenant": reading})
    second.enter(more)
    with pytest.raises(LimitReached):
        second.check(more, {"tenant": reading})


async def test_an_old_reading_seeds_no_counter() -> None:
    now_s = 0.0
    ledger, tenant_id = KnownLedger(nanousd=7), uuid4()
    readings = Readings(ledger, clock=lambda: now_s)
    local = LocalLimiter(incarnation="a", window_s=60, clock=lambda: now_s)
    asked = admission(tenant_id, make_tier(budget_nanousd_per_month=100))
    (account,) = local.accounts_of(asked)
    await readings.get(tenant_id, "tenant", account, asked.now)
    ledger.is_away, now_s = True, STALE_S / 2
    assert (await readings.get(tenant_id, "tenant", account, asked.now)).spent_this_month == 7
    with pytest.raises(LedgerAway):
        await readings.get_fresh(tenant_id, "tenant", account, asked.now)


async def test_a_budget_that_is_set_while_requests_run_counts_them_when_they_end(valkey: ValkeyProcess) -> None:
    tenant_id, free, tier = uuid4(), make_tier(), make_tier(budget_nanousd_per_month=100)
    async with open_limiter(valkey.url) as limiter:
        running = [await limiter.admit(admission(tenant_id, free, cost_nanousd=30)) for _ in range(3)]
        await limiter.settle(await limiter.admit(admission(tenant_id, tier)), tokens=1, cost_nanousd=0)
        for each in running:
            await limiter.settle(each, tokens=1, cost_nanousd=30)
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, cost_nanousd=11))
        await limiter.admit(admission(tenant_id, tier, cost_nanousd=10))


async def test_a_reading_holds_what_ended_here_just_before_and_what_was_received_after_who_asks(tmp_path: Path) -> None:
    """A slow upload's request asks late, with the time at which it was received."""
    now, tenant_id = datetime.now(UTC), uuid4()
    if (now + timedelta(minutes=1)).day != now.day:
        pytest.skip("within a minute of midnight")
    async with Outbox(tmp_path, "one") as outbox:
        ledger = UsageLedger(UsageQueries(None), data_dir=tmp_path, has_clickhouse=False, written=outbox.written)
        for number in range(50):
            at = now + timedelta(seconds=number)
            outbox.close(make_event(f"r{number}", tenant_id=str(tenant_id), cost_nanousd=1, timestamp=at))
            if number % 10 == 9:
                # Not yet written, most of them.
                assert (await ledger.used(tenant_id, "tenant", now)).spent_this_month == number + 1


def test_a_long_request_that_ended_lately_is_told_to_a_redis_that_has_forgotten_it() -> None:
    now_s = 0.0
    local = LocalLimiter(incarnation="a", window_s=60, clock=lambda: now_s)
    tenant_id, tier = uuid4(), make_tier()
    ended = {}
    for name, began_s, ended_s in (("old", 0.0, 65.0), ("long", 10.0, 95.0), ("short", 90.0, 95.0)):
        now_s = began_s
        ended[name] = (local.enter(admission(tenant_id, tier)), ended_s)
    for entry, ended_s in ended.values():
        now_s = ended_s
        local.accounts_of(entry.admission)
        assert local.close(entry, 1, 1)
    now_s = 100.0
    told = list(local.forget_memory_of_redis())
    assert {id(entry) for entry in told} == {id(ended["long"][0]), id(ended["short"][0])}


async def test_when_redis_goes_away_its_last_answer_is_at_hand_before_the_ledgers(tmp_path: Path) -> None:
    ledger, tenant_id, tier = HangingLedger(), uuid4(), make_tier(budget_nanousd_per_month=100)
    process = ValkeyProcess(tmp_path)
    process.start()
    try:
        async with open_limiter(process.url, ledger=ledger) as limiter, asyncio.timeout(20):
            for _ in range(2):
                reservation = await limiter.admit(admission(tenant_id, tier, cost_nanousd=30))
                await limiter.settle(reservation, tokens=1, cost_nanousd=30)
            (account,) = limiter.local.accounts_of(reservation.admission)
            await eventually(lambda: account.told is not None)
            ledger.hangs = True
            process.stop()
            await eventually(lambda: limiter.is_local)
            with pytest.raises(LimitReached):
                await limiter.admit(admission(tenant_id, tier, cost_nanousd=41))
            assert (await limiter.admit(admission(tenant_id, tier, cost_nanousd=40))).standing.is_local
            # Of a limit that was set since, Redis has told nothing.
            limiter._readings._shelves.clear()
            more = make_tier(budget_nanousd_per_month=100, tokens_per_day=100)
            waiting = asyncio.create_task(limiter.admit(admission(tenant_id, more)))
            _, pending = await asyncio.wait([waiting], timeout=0.5)
            assert pending
            waiting.cancel()
    finally:
        process.stop()


async def test_a_request_does_not_wait_for_the_ledger_to_seed_redis_if_it_can_be_decided_without(
    valkey: ValkeyProcess,
) -> None:
    ledger, tenant_id, tier = HangingLedger(), uuid4(), make_tier(budget_nanousd_per_month=100)
    async with open_limiter(valkey.url, ledger=ledger) as limiter, asyncio.timeout(20):
        first = await limiter.admit(admission(tenant_id, tier, cost_nanousd=60))
        await eventually(lambda: limiter.local.accounts_of(first.admission)[0].told is not None)
        with Redis.from_url(valkey.url) as redis:
            redis.delete(f"tiergate:{{{tenant_id}}}:limits:tenant")
            ledger.hangs = True
            limiter._readings._shelves.clear()
            limiter.local.num_gateways = 1
            with pytest.raises(LimitReached):
                await limiter.admit(admission(tenant_id, tier, cost_nanousd=41))
            second = await limiter.admit(admission(tenant_id, tier, cost_nanousd=40))
            assert second.standing.is_local
            # Redis is told of it.
            await eventually(lambda: second.entry.is_known)
            assert redis.exists(f"tiergate:{{{tenant_id}}}:limits:tenant")


async def test_new_end_users_of_a_tenant_without_room_are_not_looked_up(own_valkey: ValkeyProcess) -> None:
    """Neither with Redis nor without it: else whoever makes up names could have the ledger read without end."""
    ledger, tenant_id = KnownLedger(), uuid4()
    tier, limits = make_tier(budget_nanousd_per_month=100), ScopeLimits(tokens_per_day=1_000)
    async with open_limiter(own_valkey.url, ledger=ledger) as limiter:
        reservation = await limiter.admit(admission(tenant_id, tier, cost_nanousd=100))
        await limiter.settle(reservation, tokens=1, cost_nanousd=100)
        ledger.nanousd, num_calls = 100, ledger.num_calls
        for i in range(20):
            with pytest.raises(LimitReached, match="budget"):
                await limiter.admit(admission(tenant_id, tier, LimitScope(f"user:{i}", limits), cost_nanousd=1))
        assert ledger.num_calls == num_calls
        with Redis.from_url(own_valkey.url) as redis:
            assert redis.keys("*:limits:user:*") == []
        own_valkey.stop()
        await eventually(lambda: limiter.is_local)
        for i in range(20):
            with pytest.raises(LimitReached, match="budget"):
                await limiter.admit(admission(tenant_id, tier, LimitScope(f"user:{i}", limits), cost_nanousd=1))
        # The tenant's own, at most.
        assert ledger.num_calls <= num_calls + 1
