"""Settlements that were kept while Redis was away, on their way to it."""

import asyncio
from typing import cast
from uuid import uuid4

from gateway.limits.local import Entry, LocalLimiter
from gateway.limits.settlements import BATCH, Settlement, Settlements
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
    """Answers in the event loop's next iteration, and has another settlement come for each."""

    def __init__(self, num_lost: int = 0) -> None:
        self.settlements = Settlements(self.send, is_open=lambda: True)
        self.num_lost = num_lost
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
        self.settlements.keep(ended())
        if self.num_lost:
            self.num_lost -= 1
            future.set_exception(Lost("the connection ended"))
        else:
            future.set_result(b"1")


async def test_few_are_sent_at_once_and_an_end_comes_though_others_keep_coming() -> None:
    redis = Redis(num_lost=3)
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
