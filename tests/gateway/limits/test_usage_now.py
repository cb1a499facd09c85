import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.domain.limits import LimitScope, ScopeLimits
from gateway.http.errors import Unavailable
from tests.support.limiters import KnownLedger, admission, open_limiter
from tests.support.ports import free_port
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess


async def test_every_scope_tells_what_it_has_used_and_looking_changes_nothing(valkey: ValkeyProcess) -> None:
    tier = make_tier(requests_per_minute=9, tokens_per_day=100, budget_nanousd_per_month=1000)
    key = LimitScope("key:a b", ScopeLimits(requests_per_minute=5))
    asked = admission(uuid4(), tier, key, tokens=10, cost_nanousd=70)
    async with open_limiter(valkey.url, ledger=KnownLedger(tokens=30, nanousd=500)) as limiter:
        tenant, _ = await limiter.usage_now(asked)
        # Redis knows nothing yet, and the ledger does.
        assert (tenant.num_requests, tenant.tokens_today, tenant.spent_this_month) == (0, 30, 500)
        reservation = await limiter.admit(asked)
        for _ in range(2):
            tenant, inner = await limiter.usage_now(asked)
            assert (tenant.num_requests, tenant.num_tokens, tenant.num_live) == (1, 10, 1)
            assert (tenant.tokens_today, tenant.spent_this_month, tenant.is_local) == (40, 570, False)
            assert 0 < tenant.frees_s <= tenant.reset_s <= 60
            assert (inner.num_requests, inner.tokens_today, inner.spent_this_month) == (1, None, None)
        await limiter.settle(reservation, tokens=4, cost_nanousd=20)
        tenant, _ = await limiter.usage_now(asked)
        assert (tenant.num_requests, tenant.num_tokens, tenant.num_live) == (1, 4, 0)
        assert (tenant.tokens_today, tenant.spent_this_month) == (34, 520)


async def test_what_has_left_the_window_is_not_told(valkey: ValkeyProcess) -> None:
    asked = admission(uuid4(), make_tier(requests_per_minute=9), tokens=10)
    async with open_limiter(valkey.url, window_s=0.2) as limiter:
        await limiter.admit(asked)
        async with asyncio.timeout(10):
            while (await limiter.usage_now(asked))[0].num_requests:
                pass
        [tenant] = await limiter.usage_now(asked)
    assert (tenant.num_tokens, tenant.frees_s, tenant.reset_s) == (0, 0.0, 0.0)


async def test_without_redis_this_gateway_tells_what_it_knows_and_never_zero_for_unknown(tmp_path: Path) -> None:
    ledger = KnownLedger(tokens=30)
    asked = admission(uuid4(), make_tier(requests_per_minute=9, tokens_per_day=100), tokens=10)
    async with open_limiter(f"redis://127.0.0.1:{free_port()}/0", ledger=ledger) as limiter:
        await limiter.admit(asked)
        [tenant] = await limiter.usage_now(asked)
        assert (tenant.num_requests, tenant.num_live, tenant.tokens_today, tenant.is_local) == (1, 1, 40, True)
        ledger.is_away = True
        with pytest.raises(Unavailable):
            await limiter.usage_now(admission(uuid4(), asked.tier))
