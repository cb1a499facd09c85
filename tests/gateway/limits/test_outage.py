"""Redis away: local limits at this gateway's share, nothing hangs, nothing is forgotten on either way."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from redis import Redis

from gateway.domain.catalog import TierTerms
from gateway.domain.limits import LimitScope, scope_limits
from gateway.http.errors import LimitReached, Unavailable
from gateway.limits.leases import LeaseKeeper
from gateway.limits.ledger import Used
from gateway.limits.limiter import ASK_USAGE_S, Limiter
from gateway.limits.reservation import Reservation
from gateway.redis_client.pipeline import SILENT_CALLS
from tests.support.limiters import KnownLedger, admission, open_limiter
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

DEADLINE_S = 0.25
FAR_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(FAR_S):
        while not condition():  # noqa: ASYNC110  (polls another process)
            await asyncio.sleep(0.01)


async def admit_all(limiter: Limiter, tenant_id: UUID, tier: TierTerms, *, tries: int = 300) -> list[Reservation]:
    """As many as pass, one after another."""
    admitted = []
    for _ in range(tries):
        try:
            admitted.append(await limiter.admit(admission(tenant_id, tier)))
        except LimitReached:
            break
    return admitted


async def test_an_outage_is_survived_at_a_share_of_the_limits(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=10)
    async with open_limiter(own_valkey.url, lease_s=1.0) as limiter:
        before = [await limiter.admit(admission(tenant_id, tier)) for _ in range(2)]
        assert not any(reservation.standing.is_local for reservation in before)
        own_valkey.stop()
        await until(lambda: limiter.is_local)
        limiter.local.num_gateways = 2
        during = await admit_all(limiter, tenant_id, tier)
        assert len(during) == 3
        assert all(reservation.standing.is_local for reservation in during)
        assert during[0].standing.headers(tier)["x-tiergate-limiter"] == "local"
        for reservation in before + during:
            await limiter.settle(reservation, tokens=1, cost_nanousd=0)
        own_valkey.start()
        await until(lambda: not limiter.is_local)
        # The new server is told of all five, those that the old one had counted, too.
        assert (await limiter.admit(admission(tenant_id, tier))).standing.num_requests == 6


async def test_a_redis_that_comes_back_with_its_memory_counts_every_request_once(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=100, concurrency=10, tokens_per_day=1_000)
    asked = [admission(tenant_id, tier, tokens=100) for _ in range(4)]
    async with open_limiter(own_valkey.url, lease_s=1.0) as limiter:
        ended, under_way, ends_without_redis = [await limiter.admit(each) for each in asked[:3]]
        await limiter.settle(ended, tokens=30, cost_nanousd=0)
        with Redis.from_url(own_valkey.url) as redis:
            redis.save()
        own_valkey.stop()
        await until(lambda: limiter.is_local)
        local = await limiter.admit(asked[3])
        for reservation in (ends_without_redis, local):
            await limiter.settle(reservation, tokens=40, cost_nanousd=0)
        own_valkey.start()
        await until(lambda: not limiter.is_local)
        await limiter.settlements.drain_once()
        (usage,) = await limiter.usage_now(admission(tenant_id, tier))
        assert (usage.num_requests, usage.num_live, usage.tokens_today) == (4, 1, 30 + 100 + 40 + 40)
        await limiter.settle(under_way, tokens=50, cost_nanousd=0)
        (usage,) = await limiter.usage_now(admission(tenant_id, tier))
        assert (usage.num_requests, usage.num_live, usage.tokens_today) == (4, 0, 30 + 50 + 40 + 40)


async def test_requests_that_redis_refuses_make_no_room_for_later(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=1_000)
    ledger, now = KnownLedger(nanousd=900), 0.0
    async with open_limiter(own_valkey.url, ledger=ledger, clock=lambda: now or time.monotonic()) as limiter:
        await limiter.settle(await limiter.admit(admission(tenant_id, tier)), tokens=1, cost_nanousd=0)
        now = time.monotonic() + ASK_USAGE_S
        asked = [admission(tenant_id, tier, cost_nanousd=cost) for cost in (1, *[200] * 20)]
        outcomes = await asyncio.gather(*map(limiter.admit, asked), return_exceptions=True)
        assert sum(isinstance(each, LimitReached) for each in outcomes) == 20
        await limiter.usage_now(admission(tenant_id, tier))
        ledger.is_away, now = True, 0.0
        own_valkey.stop()
        await until(lambda: limiter.is_local)
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, tier, cost_nanousd=100))


async def test_a_request_that_waits_for_the_ledger_while_redis_flaps_does_not_stand_in_its_own_way(
    own_valkey: ValkeyProcess,
) -> None:
    class Slow(KnownLedger):
        async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
            asked.set()
            await answers.wait()
            return Used(0, 0)

    asked, answers = asyncio.Event(), asyncio.Event()
    tier = make_tier(concurrency=1, tokens_per_day=1_000)
    async with open_limiter(own_valkey.url, ledger=Slow(), deadline_s=DEADLINE_S) as limiter:
        only = asyncio.create_task(limiter.admit(admission(uuid4(), tier)))
        await asked.wait()
        own_valkey.pause()
        while not limiter.is_local:
            await limiter.admit(admission(uuid4(), make_tier()))
        own_valkey.resume()
        await until(lambda: not limiter.is_local)
        answers.set()
        await limiter.settle(await only, tokens=1, cost_nanousd=0)


async def test_an_empty_redis_that_takes_the_place_of_another_is_noticed_by_the_next_heartbeat(
    own_valkey: ValkeyProcess,
) -> None:
    """As when connections move one by one to a new master, so that Redis is never away."""
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=5)
    async with open_limiter(own_valkey.url) as limiter:
        keeper = LeaseKeeper(limiter, data_dir=own_valkey.folder)
        await keeper.beat()
        assert len(await admit_all(limiter, tenant_id, tier)) == 5
        with Redis.from_url(own_valkey.url) as redis:
            redis.flushall()
        await keeper.beat()
        await until(lambda: not limiter.is_local)
        assert await admit_all(limiter, tenant_id, tier) == []


async def test_a_budget_holds_without_redis_for_requests_that_run_at_once() -> None:
    tenant_id, tier = uuid4(), make_tier(budget_nanousd_per_month=100)
    ledger = KnownLedger(nanousd=40)
    async with open_limiter("redis://127.0.0.1:1/0", ledger=ledger) as limiter:
        tries = [limiter.admit(admission(tenant_id, tier, cost_nanousd=25)) for _ in range(5)]
        results = await asyncio.gather(*tries, return_exceptions=True)
    assert [getattr(result, "code", "ok") for result in results] == ["ok", "ok", "budget", "budget", "budget"]
    assert ledger.num_calls == 1


async def test_what_a_hanging_redis_reserves_late_for_a_refused_request_comes_back(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier, ledger = uuid4(), make_tier(budget_nanousd_per_month=100), KnownLedger()
    async with open_limiter(own_valkey.url, ledger=ledger, deadline_s=DEADLINE_S) as limiter:
        reservation = await limiter.admit(admission(tenant_id, tier, cost_nanousd=20))
        own_valkey.pause()
        with pytest.raises(LimitReached):
            await limiter.admit(admission(tenant_id, make_tier(concurrency=1, budget_nanousd_per_month=100)))
        own_valkey.resume()
        await until(lambda: not limiter.is_local)
        await limiter.settlements.drain_once()
        await limiter.settle(reservation, tokens=1, cost_nanousd=20)
        assert not (await limiter.admit(admission(tenant_id, tier, cost_nanousd=80))).standing.is_local


async def test_nobody_assumes_an_unspent_budget_when_redis_and_the_ledger_are_away(own_valkey: ValkeyProcess) -> None:
    ledger = KnownLedger(is_away=True)
    async with open_limiter(own_valkey.url, ledger=ledger, deadline_s=DEADLINE_S) as limiter:
        own_valkey.stop()
        await until(lambda: limiter.is_local)
        tries = [
            limiter.admit(admission(tenant_id, make_tier(budget_nanousd_per_month=100))) for tenant_id in [uuid4()] * 50
        ]
        results = await asyncio.gather(*tries, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert ledger.num_calls == 1


async def test_a_single_late_answer_is_not_away_and_counts_once(own_valkey: ValkeyProcess) -> None:
    """The late reservation in Redis and the local one are the same request."""
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=100, tokens_per_day=1000)
    async with open_limiter(own_valkey.url, deadline_s=DEADLINE_S) as limiter:
        own_valkey.pause()
        late = await limiter.admit(admission(tenant_id, tier, tokens=10))
        own_valkey.resume()
        assert late.standing.is_local
        assert not limiter.is_local
        await until(lambda: not limiter.local.untold)
        await limiter.settle(late, tokens=4, cost_nanousd=0)
        after = await limiter.admit(admission(tenant_id, tier, tokens=996))
        assert (after.standing.num_requests, after.standing.num_tokens) == (2, 1000)


async def test_a_frozen_redis_costs_a_request_its_deadline_at_most(own_valkey: ValkeyProcess) -> None:
    tier = make_tier(requests_per_minute=5)
    async with open_limiter(own_valkey.url, deadline_s=DEADLINE_S) as limiter:
        own_valkey.pause()
        started = time.monotonic()
        for _ in range(200):
            assert (await limiter.admit(admission(uuid4(), tier))).standing.is_local
        # Three of them at most had to wait; the others found it away.
        assert time.monotonic() - started < 20 * DEADLINE_S
        own_valkey.resume()
        await until(lambda: not limiter.is_local)


async def test_once_redis_is_away_nobody_waits_for_it_any_longer(own_valkey: ValkeyProcess) -> None:
    tier = make_tier(requests_per_minute=500)
    async with open_limiter(own_valkey.url, deadline_s=DEADLINE_S) as limiter:
        await limiter.admit(admission(uuid4(), tier))
        own_valkey.pause()
        asking = []
        while not limiter.is_local:
            asking.append(asyncio.create_task(limiter.admit(admission(uuid4(), tier))))
            await asyncio.sleep(0.001)
        # The last of them have waited for a millisecond.
        await asyncio.sleep(0.02)
        own_valkey.resume()
        assert all(each.done() and each.result().standing.is_local for each in asking)
        await until(lambda: not limiter.is_local)


async def test_where_many_requests_wait_silence_is_away_before_the_deadline(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=500)
    async with open_limiter(own_valkey.url, deadline_s=5.0) as limiter:
        own_valkey.pause()
        asking = [limiter.admit(admission(tenant_id, tier)) for _ in range(SILENT_CALLS)]
        admitted = await asyncio.gather(*asking)
        assert all(each.standing.is_local for each in admitted)
        assert limiter._availability._num_late == 0
        own_valkey.resume()
        await until(lambda: not limiter.is_local and not limiter.local.untold)
        after = await limiter.admit(admission(tenant_id, tier))
        assert (after.standing.num_requests, after.standing.num_tokens) == (SILENT_CALLS + 1, SILENT_CALLS + 1)


async def test_a_server_that_accepts_and_never_answers_is_away() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with open_limiter(f"redis://127.0.0.1:{port}/0", deadline_s=DEADLINE_S) as limiter:
        reservation = await limiter.admit(admission(uuid4(), make_tier(requests_per_minute=5)))
        assert reservation.standing.is_local
    server.close()
    await server.wait_closed()


async def test_our_own_slowness_is_not_redis_being_away(own_valkey: ValkeyProcess) -> None:
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=1000)
    async with open_limiter(own_valkey.url, deadline_s=0.05) as limiter:
        for _ in range(5):
            asking = [asyncio.ensure_future(limiter.admit(admission(tenant_id, tier))) for _ in range(10)]
            for _ in range(3):
                await asyncio.sleep(0)
                time.sleep(0.1)  # noqa: ASYNC251  (the claim is about a loop that is held up)
            assert not any([(await each).standing.is_local for each in asking])
    assert limiter.num_decided_here == 0


async def test_what_is_being_asked_counts_before_it_is_answered(own_valkey: ValkeyProcess) -> None:
    """All of a burst may have passed in Redis, so that the local limiter may not admit a second burst."""
    tenant_id, tier = uuid4(), make_tier(requests_per_minute=10)
    async with open_limiter(own_valkey.url, deadline_s=DEADLINE_S) as limiter:
        own_valkey.pause()
        tries = [limiter.admit(admission(tenant_id, tier)) for _ in range(50)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        more = await admit_all(limiter, tenant_id, tier)
        own_valkey.resume()
    assert sum(isinstance(result, Reservation) for result in results) + len(more) == 10


@pytest.mark.parametrize(
    ("how", "scope", "name"),
    [
        ("killed", "tenant", "requests_per_minute"),
        ("frozen", "tenant", "requests_per_minute"),
        ("restarted", "tenant", "requests_per_minute"),
        ("frozen", "tenant", "tokens_per_minute"),
        ("restarted", "tenant", "concurrency"),
        ("killed", "tenant", "tokens_per_day"),
        ("frozen", "tenant", "budget_nanousd_per_month"),
        ("restarted", "key:k", "requests_per_minute"),
        ("killed", "user:u", "tokens_per_minute"),
        ("frozen", "key:k", "concurrency"),
        ("restarted", "user:u", "budget_nanousd_per_month"),
    ],
)
async def test_in_an_outage_limits_are_passed_by_the_stated_bound_at_most(
    own_valkey: ValkeyProcess, how: str, scope: str, name: str
) -> None:
    """docs/limits.md: limit + (gateways - 1) * share, when all of it passed at one gateway before."""
    limit, num_gateways, tenant_id = 40, 4, uuid4()
    ledger, admitted = KnownLedger(), []
    if scope == "tenant":
        tier, inner = make_tier(**{name: limit}), ()
    else:
        tier, inner = make_tier(), (LimitScope(scope, scope_limits({name: limit})),)

    async def load(limiter: Limiter, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                reservation = await limiter.admit(admission(tenant_id, tier, *inner, cost_nanousd=1))
                admitted.append(reservation)
                if name == "concurrency":
                    await asyncio.sleep(0)
                    continue
                await limiter.settle(reservation, tokens=1, cost_nanousd=1)
                ledger.tokens = ledger.nanousd = ledger.tokens + 1
            except LimitReached as refused:
                assert refused.code == ("budget" if name.startswith("budget") else name)
                await asyncio.sleep(0.001)

    async with asyncio.timeout(60), AsyncExitStack() as stack:
        opened = [open_limiter(own_valkey.url, ledger=ledger, deadline_s=DEADLINE_S) for _ in range(num_gateways)]
        limiters = [await stack.enter_async_context(each) for each in opened]
        for limiter in limiters:
            await limiter.presence.beat()
        for limiter in limiters:
            limiter.local.num_gateways = (await limiter.presence.beat()).num_alive
            assert limiter.local.num_gateways == num_gateways
        stop = asyncio.Event()
        first = asyncio.create_task(load(limiters[0], stop))
        await until(lambda: len(admitted) >= limit // 2)
        others = [asyncio.create_task(load(limiter, stop)) for limiter in limiters[1:]]
        if how == "frozen":
            own_valkey.pause()
        else:
            own_valkey.stop()
        await until(lambda: all(limiter.is_local for limiter in limiters))
        await asyncio.sleep(0.2)  # the outage itself; nothing to wait for
        if how == "frozen":
            own_valkey.resume()
        elif how == "restarted":
            own_valkey.start()
        if how != "killed":
            await until(lambda: not any(limiter.is_local for limiter in limiters))
            num_before = len(admitted)
            await asyncio.sleep(0.2)  # in which nothing more may pass
            if num_before >= limit:
                assert len(admitted) == num_before
        stop.set()
        await asyncio.gather(first, *others)
    share = limit // num_gateways
    assert limit // 2 <= len(admitted) <= limit + (num_gateways - 1) * share
