"""Settlements that were kept while Redis was away, on their way to it."""

import asyncio
from typing import Any, cast
from uuid import uuid4

import pytest

from gateway.limits.local import Entry, LocalLimiter
from gateway.limits.settlements import BATCH, Settlement, Settlements
from gateway.limits.telling import Telling
from gateway.redis_client.connection import Lost
from gateway.redis_client.resp import Reply
from tests.support.limiters import admission
from tests.support.tiers import make_tier

TIER = make_tier(requests_per_minute=1000)


def ended() -> Settlement:
    local = LocalLimiter(incarnation="one", window_s=60)
    entry: Entry = local.enter(admission(uuid4(), TIER))
    local.close(entry, 1, 0)
    return Settlement(entry, "actual")


class Redis:
    """Answers in the event loop's next iteration, and has `num_more` settlements come for each."""

    def __init__(self, *, num_more: float = 0.0, num_lost: int = 0) -> None:
        self.settlements = Settlements(self.send, is_open=lambda: True)
        self.num_more = num_more
        self.num_lost = num_lost
        self.owed = 0.0
        self.sent: list[Settlement] = []
        self.under_way = self.most_under_way = 0

    def send(self, settlement: Settlement) -> "asyncio.Future[Reply]":
        self.sent.append(settlement)
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        loop = asyncio.get_running_loop()
        future = cast("asyncio.Future[Reply]", loop.create_future())
        loop.call_soon(self.answer, future)
        return future

    def answer(self, future: "asyncio.Future[Reply]") -> None:
        self.under_way -= 1
        self.owed += self.num_more
        while self.owed >= 1:
            self.owed -= 1
            self.settlements.keep(ended())
        if self.num_lost:
            self.num_lost -= 1
            future.set_exception(Lost("the connection ended"))
        else:
            future.set_result(b"1")


async def test_few_are_sent_at_once_and_an_end_comes_though_others_keep_coming() -> None:
    redis = Redis(num_more=1, num_lost=3)
    before = [ended() for _ in range(3 * BATCH + 1)]
    for each in before:
        redis.settlements.keep(each)
    await redis.settlements.drain_once()
    assert redis.sent == before
    assert redis.most_under_way == BATCH
    assert len(redis.settlements) == len(before) + 3
    # Those whose answers were lost are sent again.
    await redis.settlements.drain_once()
    assert len(redis.sent) == 2 * len(before) + 3
    assert sum(each in redis.sent[len(before) :] for each in before) == 3


async def test_at_the_end_what_was_lost_is_sent_again() -> None:
    redis = Redis(num_lost=BATCH + 1)
    for _ in range(2 * BATCH):
        redis.settlements.keep(ended())
    await redis.settlements.drain()
    assert len(redis.settlements) == 0
    redis.num_lost = 10**9
    redis.settlements.keep(ended())
    await redis.settlements.drain()
    assert len(redis.settlements) == 1


@pytest.mark.parametrize(("num_more", "most_left"), [(0.5, BATCH), (1.0, 8 * BATCH)])
async def test_catching_up_leaves_hardly_anything_and_ends_though_others_keep_coming(
    num_more: float, most_left: int
) -> None:
    redis = Redis(num_more=num_more)
    for _ in range(8 * BATCH):
        redis.settlements.keep(ended())
    local = LocalLimiter(incarnation="one", window_s=60)
    telling = Telling(cast(Any, None), local, cast(Any, None), redis.settlements)
    async with asyncio.timeout(20):
        await telling._tell_everything()
    assert len(redis.settlements) <= most_left
