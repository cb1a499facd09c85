"""A lone request whose limits have much room is settled after its answer, together with the next one."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.limits import LimitScope, ScopeLimits
from gateway.limits.limiter import ROOM_STANDS_S, Limiter
from tests.gateway.inference.test_sessions_at_two_gateways import two_scenes
from tests.support.gateways import eventually
from tests.support.limiters import admission, open_limiter
from tests.support.session_scenes import SessionScene
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

TOKENS = COST = 100
MUCH = {
    "tokens_per_minute": 5 * TOKENS,
    "concurrency": 4,
    "tokens_per_day": 5 * TOKENS,
    "budget_nanousd_per_month": 5 * COST,
}
"""The least that leaves room for four more requests like the one that runs."""


@pytest.mark.parametrize("limit", MUCH)
@pytest.mark.parametrize("scope", ["tenant", "key"])
async def test_there_is_much_room_or_a_request_is_settled_before_its_answer(
    valkey: ValkeyProcess, scope: str, limit: str
) -> None:
    async def is_late(**limits: int) -> bool:
        if scope == "tenant":
            asked = admission(uuid4(), make_tier(**limits), tokens=TOKENS, cost_nanousd=COST)
        else:
            key = LimitScope("key:k", ScopeLimits(**limits))
            asked = admission(uuid4(), make_tier(), key, tokens=TOKENS, cost_nanousd=COST)
        reservation = await limiter.admit(asked)
        found = limiter.may_settle_late(reservation)
        await limiter.settle(reservation, tokens=1, cost_nanousd=1)
        return found

    async with open_limiter(valkey.url) as limiter:
        assert await is_late(**MUCH)
        assert not await is_late(**MUCH | {limit: MUCH[limit] - 1})


async def test_beside_another_request_or_after_a_while_nothing_is_settled_late(valkey: ValkeyProcess) -> None:
    now_s, tenant_id, tier = 0.0, uuid4(), make_tier(concurrency=100)
    async with open_limiter(valkey.url, clock=lambda: now_s) as limiter:
        first = await limiter.admit(admission(tenant_id, tier))
        assert limiter.may_settle_late(first)
        second = await limiter.admit(admission(tenant_id, tier))
        assert not limiter.may_settle_late(first)
        await limiter.settle(first, tokens=1, cost_nanousd=0)
        assert limiter.may_settle_late(second)
        now_s += ROOM_STANDS_S
        assert not limiter.may_settle_late(second)


async def test_a_late_settlement_goes_with_the_next_request_and_counts_before_it(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.redis_client.line.LATE_S", 20.0)
    tenant_id, tier = uuid4(), make_tier(concurrency=1)
    async with open_limiter(valkey.url) as limiter:
        for number in range(3):
            reservation = await limiter.admit(admission(tenant_id, tier, tokens=50))
            assert len(limiter.settlements) == 0
            limiter.settle_soon(reservation, tokens=1, cost_nanousd=0, urgency="late")
            usage, *_ = await limiter.usage_now(admission(tenant_id, tier))
            assert (usage.num_live, usage.num_tokens) == (0, number + 1)


async def test_a_late_settlement_does_not_wait_for_ever(valkey: ValkeyProcess) -> None:
    async with open_limiter(valkey.url) as limiter:
        reservation = await limiter.admit(admission(uuid4(), make_tier(concurrency=100)))
        limiter.settle_soon(reservation, tokens=1, cost_nanousd=0, urgency="late")
        async with asyncio.timeout(30):
            await limiter.settlements.drain_once()
        assert len(limiter.settlements) == 0


async def test_only_a_request_after_another_lone_one_is_asked_about_at_once(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_limiter(valkey.url) as limiter:
        urgencies: list[str] = []
        send_step = limiter.redis.send_step

        def recording(*args: Any, urgency: Any, **options: Any) -> Any:
            urgencies.append(urgency)
            return send_step(*args, urgency=urgency, **options)

        monkeypatch.setattr(limiter.redis, "send_step", recording)
        await _ask_together(limiter, 1)
        await _ask_together(limiter, 1)
        await _ask_together(limiter, 2)
        await _ask_together(limiter, 1)
        await _ask_together(limiter, 1)
    assert urgencies == ["soon", "now", "now", "soon", "soon", "now"]


async def _ask_together(limiter: Limiter, num: int) -> None:
    asked = [admission(uuid4(), make_tier()) for _ in range(num)]
    for reservation in await asyncio.gather(*map(limiter.admit, asked)):
        limiter.local.close(reservation.entry, 1, 0)


async def test_without_much_room_no_gateway_refuses_what_follows_an_answer_of_another(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with two_scenes(tmp_path, valkey) as scenes:
        path, limits = f"/tenants/{scenes[0].tenant_id}", {"limits": {"concurrency": 1}}
        assert (await scenes[0].gateway.admin.patch(path, json=limits)).status_code == 200
        for scene in scenes:
            await eventually(partial(_is_limited, scene))
        for number in range(40):
            assert (await scenes[number % 2].ask("Hi", session=None)).status_code == 200


def _is_limited(scene: SessionScene) -> bool:
    return scene.tenant_id in scene.gateway.services.catalog.current.tenants
