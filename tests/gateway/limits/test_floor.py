"""A Valkey that lacks usage which the ledger has: what it counts for day and month rises to the ledger's figures."""

import time
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from redis import Redis

from gateway.http.errors import LimitReached
from gateway.limits.commands import TELL_PARTS
from gateway.limits.leases import LeaseKeeper
from gateway.limits.ledger import FRESH_S, Used
from gateway.limits.limiter import Limiter
from gateway.limits.local import NEW_IN_LEDGER_S
from gateway.limits.reservation import has_periods
from tests.support.gateways import eventually
from tests.support.limiters import NOW, KnownLedger, admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

TIER = make_tier(tokens_per_day=1_000, budget_nanousd_per_month=100)


async def spend(limiter: Limiter, tenant_id: UUID, *, tokens: int, cost_nanousd: int) -> None:
    reservation = await limiter.admit(admission(tenant_id, TIER, tokens=tokens, cost_nanousd=cost_nanousd))
    await limiter.settle(reservation, tokens=tokens, cost_nanousd=cost_nanousd)


async def counted(limiter: Limiter, tenant_id: UUID) -> tuple[int, int]:
    (usage,) = await limiter.usage_now(admission(tenant_id, TIER))
    return usage.tokens_today, usage.spent_this_month


@dataclass
class Later:
    """A clock that tests move forward."""

    by_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.by_s


async def compare(limiter: Limiter, clock: Later) -> None:
    clock.by_s += FRESH_S
    await limiter.floor.hold(await limiter.floor.look(NOW, is_in_doubt=True))


async def test_usage_that_a_snapshot_lacks_is_counted_again_from_the_ledger(own_valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(own_valkey.url, ledger=ledger, lease_s=1.0, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=300, cost_nanousd=30)
        with Redis.from_url(own_valkey.url) as redis:
            redis.save()
        under_way = await limiter.admit(admission(tenant_id, TIER, tokens=100, cost_nanousd=10))
        await spend(limiter, tenant_id, tokens=500, cost_nanousd=50)
        own_valkey.stop()
        await eventually(lambda: limiter.is_local)
        own_valkey.start()
        await eventually(lambda: not limiter.is_local)
        # The request under way was told again, with its concurrency; the one that has ended is missing.
        assert await counted(limiter, tenant_id) == (400, 40)
        ledger.tokens, ledger.nanousd = 800, 80
        await limiter.settle(under_way, tokens=100, cost_nanousd=10)
        await compare(limiter, clock)
        assert await counted(limiter, tenant_id) == (800, 80)
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, TIER, cost_nanousd=21))


async def test_nothing_is_raised_where_the_ledger_lags_behind(valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(tokens=7, nanousd=7), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=50, cost_nanousd=5)
        await compare(limiter, clock)
        assert await counted(limiter, tenant_id) == (57, 12)


async def test_a_tenant_that_redis_has_forgotten_is_left_to_the_next_admission(valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=50, cost_nanousd=5)
        key = f"tiergate:{{{tenant_id}}}:limits:tenant"
        with Redis.from_url(valkey.url) as redis:
            redis.delete(key)
            ledger.tokens, ledger.nanousd = 50, 5
            await compare(limiter, clock)
            assert not redis.exists(key)
        await spend(limiter, tenant_id, tokens=1, cost_nanousd=1)
        assert await counted(limiter, tenant_id) == (51, 6)


async def test_what_is_told_late_is_set_off_against_what_was_raised(valkey: ValkeyProcess) -> None:
    """A gateway cut off from Redis bills requests, of which the others learn from the ledger before they are told."""
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=100, cost_nanousd=10)
        late = limiter.local.enter(admission(tenant_id, TIER, tokens=300, cost_nanousd=30))
        limiter.local.close(late, 300, 30)
        ledger.tokens, ledger.nanousd = 500, 50
        await compare(limiter, clock)
        assert await counted(limiter, tenant_id) == (500, 50)
        clock.by_s += 2 * NEW_IN_LEDGER_S
        await limiter._telling.tell(late).future
        assert await counted(limiter, tenant_id) == (500, 50)
        # Nothing is left of what was raised but 100 tokens.
        later = limiter.local.enter(admission(tenant_id, TIER, tokens=200, cost_nanousd=20))
        limiter.local.close(later, 200, 20)
        clock.by_s += 2 * NEW_IN_LEDGER_S
        await limiter._telling.tell(later).future
        assert await counted(limiter, tenant_id) == (600, 60)


async def test_only_scopes_that_have_changed_are_looked_at_again(valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id, other_id = KnownLedger(), Later(), uuid4(), uuid4()
    no_periods = make_tier()
    assert not has_periods(no_periods)
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=1, cost_nanousd=1)
        await limiter.settle(await limiter.admit(admission(other_id, no_periods)), tokens=1, cost_nanousd=1)
        # Other tests' gateways share this Valkey.
        limiter.local.num_gateways = 1
        looked_at = [look.tenant_id for look in await limiter.floor.look(NOW, is_in_doubt=False)]
        assert looked_at == [tenant_id]
        assert await limiter.floor.look(NOW, is_in_doubt=False) == []
        assert len(await limiter.floor.look(NOW, is_in_doubt=True)) == 1
        ledger.is_away = True
        clock.by_s += FRESH_S
        assert await limiter.floor.look(NOW, is_in_doubt=True) == []


async def test_a_raise_covers_nothing_that_ended_after_the_ledger_was_read(valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=1, cost_nanousd=1)
        ledger.tokens, ledger.nanousd = 401, 41
        await compare(limiter, clock)
        assert await counted(limiter, tenant_id) == (401, 41)
        later = limiter.local.enter(admission(tenant_id, TIER, tokens=200, cost_nanousd=20))
        request_id = later.admission.request_id
        tell = later.terms.tell(request_id, 200, 20, age_s=0, ended_s=0, counting="seeded")
        await limiter.redis.send_step(later.terms.tell_group, tell, TELL_PARTS, order=later.accounts[0].order).future
        assert await counted(limiter, tenant_id) == (601, 61)


async def test_events_that_were_counted_twice_on_their_way_raise_nothing(valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=300, cost_nanousd=30)
        ledger.tokens, ledger.nanousd = 600, 60
        clock.by_s += FRESH_S
        looks = await limiter.floor.look(NOW, is_in_doubt=True)
        ledger.tokens, ledger.nanousd = 300, 30
        clock.by_s += FRESH_S
        await limiter.floor.hold(looks)
        assert await counted(limiter, tenant_id) == (300, 30)


async def test_what_cannot_be_read_stays_in_doubt_and_keeps_nobody_else(valkey: ValkeyProcess) -> None:
    class Odd(KnownLedger):
        async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
            if tenant_id == broken and self.is_away:
                raise RuntimeError("a thread cannot be started")
            return await super().used(tenant_id, scope, now) if tenant_id != broken else Used(300, 30)

    ledger, clock, tenant_id, broken = Odd(), Later(), uuid4(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        for each in (broken, tenant_id):
            await spend(limiter, each, tokens=1, cost_nanousd=1)
        ledger.is_away = True
        clock.by_s += FRESH_S
        limiter.local.num_gateways = 1
        assert await limiter.floor.look(NOW, is_in_doubt=False) == []
        ledger.is_away, ledger.tokens, ledger.nanousd = False, 300, 30
        clock.by_s += FRESH_S
        looks = await limiter.floor.look(NOW, is_in_doubt=False)
        assert {look.tenant_id for look in looks} == {broken, tenant_id}
        with Redis.from_url(valkey.url) as redis:
            redis.set(f"tiergate:{{{broken}}}:limits:tenant", "not a hash")
        clock.by_s += FRESH_S
        await limiter.floor.hold(looks)
        assert await counted(limiter, tenant_id) == (300, 30)


async def test_what_an_older_state_holds_as_running_is_freed_and_compared_again(own_valkey: ValkeyProcess) -> None:
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(own_valkey.url, ledger=ledger, lease_s=1.0, clock=clock) as limiter:
        reservation = await limiter.admit(admission(tenant_id, TIER, tokens=600))
        with Redis.from_url(own_valkey.url) as redis:
            redis.save()
        await limiter.settle(reservation, tokens=600, cost_nanousd=0)
        ledger.tokens = 600
        own_valkey.stop()
        await eventually(lambda: limiter.is_local)
        own_valkey.start()
        await eventually(lambda: not limiter.is_local)
        await compare(limiter, clock)
        assert not limiter.floor._doubt.is_set()
        await LeaseKeeper(limiter, data_dir=own_valkey.folder).tidy()
        assert await counted(limiter, tenant_id) == (0, 0)
        assert limiter.floor._doubt.is_set()
        await compare(limiter, clock)
        assert await counted(limiter, tenant_id) == (600, 0)


async def test_a_reading_is_as_old_as_the_ledger_was_when_it_was_read(valkey: ValkeyProcess) -> None:
    """A request that ended after the reading, and before it was used, is not set off against it."""
    ledger, clock, tenant_id = KnownLedger(), Later(), uuid4()
    async with open_limiter(valkey.url, ledger=ledger, clock=clock) as limiter:
        await spend(limiter, tenant_id, tokens=100, cost_nanousd=10)
        clock.by_s += FRESH_S + 1
        ledger.tokens, ledger.nanousd = 400, 40
        await limiter.usage_now(admission(tenant_id, TIER))
        clock.by_s += FRESH_S / 3
        late = limiter.local.enter(admission(tenant_id, TIER, tokens=250, cost_nanousd=25))
        limiter.local.close(late, 250, 25)
        clock.by_s += FRESH_S / 3
        looks = await limiter.floor.look(NOW, is_in_doubt=True)
        clock.by_s += 60
        await limiter.floor.hold(looks)
        assert await counted(limiter, tenant_id) == (400, 40)
        await limiter._telling.tell(late).future
        assert await counted(limiter, tenant_id) == (650, 65)
