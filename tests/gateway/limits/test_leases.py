"""What a gateway holds lives as long as its heartbeat, comes back after that, and is never counted twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.domain.catalog import TierTerms
from gateway.http.errors import LimitReached
from gateway.limits.commands import TELL_PARTS, held_key
from gateway.limits.leases import LeaseKeeper
from gateway.limits.ledger import STALE_S, Used
from gateway.limits.limiter import Limiter
from gateway.limits.presence import tenants_key
from gateway.limits.unsettled import read_unsettled, write_unsettled
from gateway.redis_client import connect_redis
from protocol.usage import UsageStatus
from tests.support.events import make_event
from tests.support.freezing_proxy import freezing_proxy
from tests.support.gateways import eventually
from tests.support.limiters import KnownLedger, admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

LEASE_S = 0.5
TIER = make_tier(concurrency=1, tokens_per_day=100)
TIER_OF_TWO = make_tier(concurrency=2, tokens_per_day=100)


@asynccontextmanager
async def open_gateway(valkey: ValkeyProcess) -> AsyncIterator[tuple[Limiter, LeaseKeeper]]:
    async with open_limiter(valkey.url, lease_s=LEASE_S) as limiter:
        yield limiter, LeaseKeeper(limiter, data_dir=valkey.folder)


async def is_refused(limiter: Limiter, tenant_id: UUID, *, tokens: int = 1, tier: TierTerms = TIER) -> bool:
    try:
        limiter.refund_soon(await limiter.admit(admission(tenant_id, tier, tokens=tokens)))
    except LimitReached:
        return True
    await limiter.settlements.drain_once()
    return False


async def beat_until_free(
    keeper: LeaseKeeper, limiter: Limiter, tenant_id: UUID, *, tokens: int = 1, tier: TierTerms = TIER
) -> None:
    async with asyncio.timeout(20):
        while await is_refused(limiter, tenant_id, tokens=tokens, tier=tier):
            await keeper.beat()
            await keeper.sweep_dead()
            await asyncio.sleep(LEASE_S / 10)


async def test_a_beating_gateway_keeps_what_it_holds(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (limiter, keeper), open_gateway(own_valkey) as (other, other_keeper):
        await limiter.admit(admission(tenant_id, TIER, tokens=100))
        deadline = asyncio.get_running_loop().time() + 3 * LEASE_S
        while asyncio.get_running_loop().time() < deadline:
            await keeper.beat()
            await keeper.sweep_dead()
            await other_keeper.beat()
            await other_keeper.sweep_dead()
            assert await is_refused(other, tenant_id)


async def test_a_dead_gateways_place_is_free_after_its_lease_and_what_it_reserved_once_its_outbox_is_adopted(
    own_valkey: ValkeyProcess,
) -> None:
    tenant_id = uuid4()
    asked = [admission(tenant_id, TIER_OF_TWO, tokens=30), admission(tenant_id, TIER_OF_TWO, tokens=20)]
    async with open_gateway(own_valkey) as (dead, _):
        for each in asked:
            await dead.admit(each)
        incarnation = dead.presence.incarnation
    async with open_gateway(own_valkey) as (limiter, keeper):
        assert await is_refused(limiter, tenant_id, tier=TIER_OF_TWO)
        await beat_until_free(keeper, limiter, tenant_id, tokens=50, tier=TIER_OF_TWO)
        # Nobody knows yet what the two have used, so that nothing of it is given away.
        assert await is_refused(limiter, tenant_id, tokens=51, tier=TIER_OF_TWO)
        events = [
            make_event(
                asked[0].request_id, tenant_id=str(tenant_id), prompt_tokens=4, completion_tokens=6, status="lost"
            ),
            make_event(
                asked[1].request_id, tenant_id=str(tenant_id), prompt_tokens=0, completion_tokens=0, status="error"
            ),
            make_event("of-somebody-else", tenant_id=str(tenant_id)),
        ]
        for _ in range(2):
            write_unsettled(own_valkey.folder, incarnation, events)
            await keeper.settle_adopted()
            assert not await is_refused(limiter, tenant_id, tokens=90, tier=TIER_OF_TWO)
            assert await is_refused(limiter, tenant_id, tokens=91, tier=TIER_OF_TWO)
        assert list(read_unsettled(own_valkey.folder)) == []


@pytest.mark.parametrize("status", ["lost", "error"])
async def test_an_adopted_outbox_that_is_told_before_the_lease_ends_frees_the_place_too(
    own_valkey: ValkeyProcess, status: UsageStatus
) -> None:
    """An error that was told in mid-answer has tokens, and keeps them."""
    asked = admission(uuid4(), TIER, tokens=60)
    tenant_id = asked.tenant_id
    async with open_gateway(own_valkey) as (dead, _):
        await dead.admit(asked)
        incarnation = dead.presence.incarnation
    async with open_gateway(own_valkey) as (limiter, keeper):
        event = make_event(
            asked.request_id, tenant_id=str(tenant_id), prompt_tokens=5, completion_tokens=5, status=status
        )
        write_unsettled(own_valkey.folder, incarnation, [event])
        assert await is_refused(limiter, tenant_id)
        await keeper.settle_adopted()
        assert not await is_refused(limiter, tenant_id, tokens=90)
        assert await is_refused(limiter, tenant_id, tokens=91)


@pytest.mark.parametrize("is_swept", [False, True])
async def test_what_left_no_event_in_an_adopted_outbox_is_given_back(own_valkey: ValkeyProcess, is_swept: bool) -> None:
    """Its gateway was killed before the outbox had noted it, so it is never billed. Whether the lease has ended before
    the outbox is adopted makes no difference."""
    tenant_id = uuid4()
    noted = admission(tenant_id, TIER_OF_TWO, tokens=30)
    async with open_gateway(own_valkey) as (dead, _):
        for each in (noted, admission(tenant_id, TIER_OF_TWO, tokens=60)):
            await dead.admit(each)
        incarnation = dead.presence.incarnation
    async with open_gateway(own_valkey) as (limiter, keeper):
        if is_swept:
            await beat_until_free(keeper, limiter, tenant_id, tokens=10, tier=TIER_OF_TWO)
        assert await is_refused(limiter, tenant_id, tokens=11, tier=TIER_OF_TWO)
        for events in (
            [make_event(noted.request_id, tenant_id=str(tenant_id), prompt_tokens=5, completion_tokens=5)],
            [],
        ):
            write_unsettled(own_valkey.folder, incarnation, events)
            await keeper.settle_adopted()
            assert not await is_refused(limiter, tenant_id, tokens=90, tier=TIER_OF_TWO)
            assert await is_refused(limiter, tenant_id, tokens=91, tier=TIER_OF_TWO)
        assert list(read_unsettled(own_valkey.folder)) == []


async def test_a_tenant_all_of_whose_requests_left_no_event_is_found_too(own_valkey: ValkeyProcess) -> None:
    asked = admission(uuid4(), TIER, tokens=60)
    async with open_gateway(own_valkey) as (dead, _):
        await dead.admit(asked)
        incarnation = dead.presence.incarnation
    async with open_gateway(own_valkey) as (limiter, keeper):
        await beat_until_free(keeper, limiter, asked.tenant_id)
        assert await is_refused(limiter, asked.tenant_id, tokens=41)
        write_unsettled(own_valkey.folder, incarnation, [])
        await keeper.settle_adopted()
        assert not await is_refused(limiter, asked.tenant_id, tokens=100)


async def test_the_tenants_of_a_gateway_that_comes_back_are_known_for_good(own_valkey: ValkeyProcess) -> None:
    asked = admission(uuid4(), TIER, tokens=60)
    redis: Any = connect_redis(own_valkey.url, deadline_s=5)
    async with open_gateway(own_valkey) as (paused, paused_keeper), open_gateway(own_valkey) as (limiter, keeper):
        await paused.admit(asked)
        await beat_until_free(keeper, limiter, asked.tenant_id)
        key = tenants_key(paused.presence.incarnation)
        assert await redis.ttl(key) > 0
        await paused_keeper.beat()
        assert await redis.ttl(key) == -1
    await redis.aclose()


async def test_a_request_that_is_being_decided_without_redis_is_not_tidied_away(own_valkey: ValkeyProcess) -> None:
    """Redis has reserved it, but answered late, and the ledger takes its time."""

    class SlowLedger(KnownLedger):
        async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
            asked_slowly.set()
            await go_on.wait()
            return Used(0, 0)

    asked_slowly, go_on, tenant_id = asyncio.Event(), asyncio.Event(), uuid4()
    later_s = 0.0
    tier = make_tier(tokens_per_day=1_000)
    async with (
        freezing_proxy(own_valkey.port) as proxy,
        asyncio.timeout(30),
        open_limiter(
            f"redis://127.0.0.1:{proxy.port}/0",
            ledger=SlowLedger(),
            deadline_s=0.2,
            clock=lambda: time.monotonic() + later_s,
        ) as limiter,
    ):
        go_on.set()
        await limiter.settle(await limiter.admit(admission(tenant_id, tier)), tokens=0, cost_nanousd=0)
        go_on.clear()
        asked_slowly.clear()
        # Nothing is at hand that the request could be decided by instead.
        later_s = STALE_S + 1
        proxy.freeze()
        asked = admission(tenant_id, tier, tokens=500)
        deciding = asyncio.create_task(limiter.admit(asked))
        await asked_slowly.wait()
        proxy.thaw()
        await eventually(lambda: not limiter.is_local)
        await LeaseKeeper(limiter, data_dir=own_valkey.folder).tidy()
        go_on.set()
        await limiter.settle(await deciding, tokens=300, cost_nanousd=0)
        await eventually(lambda: not limiter.local.untold and not len(limiter.settlements))
        [usage] = await limiter.usage_now(admission(tenant_id, tier))
        assert (usage.num_tokens, usage.tokens_today) == (300, 300)


async def test_a_gateway_that_was_only_paused_is_counted_right_when_it_comes_back(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (paused, paused_keeper):
        reservation = await paused.admit(admission(tenant_id, TIER, tokens=60))
        async with open_gateway(own_valkey) as (limiter, keeper):
            await beat_until_free(keeper, limiter, tenant_id, tokens=40)
            # It comes back, and its request is under way again...
            await paused_keeper.beat()
            await paused_keeper.sweep_dead()
            async with asyncio.timeout(20):
                while not await is_refused(limiter, tenant_id):
                    await paused.settlements.drain_once()
            # ...until it ends, and counts once, however often that is said.
            for _ in range(2):
                await paused.settle(reservation, tokens=60, cost_nanousd=0)
            assert not await is_refused(limiter, tenant_id, tokens=40)
            assert await is_refused(limiter, tenant_id, tokens=41)


async def test_a_gateway_that_lost_its_connection_for_longer_than_its_lease_is_counted_when_it_returns(
    own_valkey: ValkeyProcess,
) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (cut_off, _):
        await cut_off.admit(admission(tenant_id, TIER, tokens=60))
        async with open_gateway(own_valkey) as (limiter, keeper):
            await beat_until_free(keeper, limiter, tenant_id, tokens=40)
            await cut_off._return()
            assert await is_refused(limiter, tenant_id)


async def test_a_request_that_ends_after_its_gateway_was_taken_for_dead_counts_once(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (paused, _):
        reservation = await paused.admit(admission(tenant_id, TIER, tokens=60))
        async with open_gateway(own_valkey) as (limiter, keeper):
            await beat_until_free(keeper, limiter, tenant_id, tokens=40)
            for _ in range(2):
                await paused.settle(reservation, tokens=50, cost_nanousd=0)
            assert not await is_refused(limiter, tenant_id, tokens=50)
            assert await is_refused(limiter, tenant_id, tokens=51)


async def test_a_settled_request_is_not_brought_back_to_life(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (limiter, _):
        reservation = await limiter.admit(admission(tenant_id, TIER))
        entry = reservation.entry
        # As after being taken for dead: this is on its way when the request ends, and may arrive before or after that.
        entry.is_known = False
        terms, order = entry.terms, entry.accounts[0].order
        renewal = terms.tell(entry.admission.request_id, 1, 0, age_s=0, ended_s=None, counting="always")
        before = limiter.redis.send_step(terms.tell_group, renewal, TELL_PARTS, order=order)
        await limiter.settle(reservation, tokens=1, cost_nanousd=0)
        after = limiter.redis.send_step(terms.tell_group, renewal, TELL_PARTS, order=order)
        await asyncio.gather(before.future, after.future)
        assert not await is_refused(limiter, tenant_id, tokens=99)
        assert await is_refused(limiter, tenant_id, tokens=100)


async def test_what_arrives_after_its_own_settlement_is_tidied_up(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (limiter, keeper):
        assert not await is_refused(limiter, tenant_id)
        stray = limiter.local.enter(admission(tenant_id, TIER, tokens=100))
        limiter.local.leave(stray)
        await limiter._ask(stray).future
        assert await is_refused(limiter, tenant_id)
        await keeper.tidy()
        assert not await is_refused(limiter, tenant_id, tokens=100)


async def test_nothing_is_left_of_requests_that_ended(own_valkey: ValkeyProcess) -> None:
    tenant_id = uuid4()
    async with open_gateway(own_valkey) as (limiter, keeper):
        for how in ("settled", "refunded", "told"):
            reservation = await limiter.admit(admission(tenant_id, TIER))
            if how == "refunded":
                limiter.refund_soon(reservation)
            else:
                reservation.entry.is_known = how == "settled"
                await limiter.settle(reservation, tokens=1, cost_nanousd=0)
        await limiter.settlements.drain_once()
        await keeper.tidy()
        redis: Any = connect_redis(own_valkey.url, deadline_s=5)
        assert await redis.exists(held_key(tenant_id, limiter.presence.incarnation)) == 0
        await redis.aclose()


async def test_gateways_know_how_many_share_the_limits(own_valkey: ValkeyProcess) -> None:
    async with open_gateway(own_valkey) as (limiter, keeper), open_gateway(own_valkey) as (_, other):
        await other.beat()
        await other.sweep_dead()
        await keeper.beat()
        await keeper.sweep_dead()
        assert limiter.local.num_gateways == 2
        await other.leave()
        await keeper.beat()
        await keeper.sweep_dead()
        assert limiter.local.num_gateways == 1
