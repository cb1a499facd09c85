import asyncio
from typing import Any

from redis.asyncio import Redis

from gateway.upstream.drained import DRAINED_KEY, Drained
from tests.support.valkey import ValkeyProcess

DEADLINE_S = 20
URL = "http://replica:8000"


class _LateFirstAnswer(Redis):
    """Its first reading is answered by the server at once, but its caller goes on only when it may."""

    def __init__(self, url: str) -> None:
        super().__init__(connection_pool=Redis.from_url(url).connection_pool)
        self.answered, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def hgetall(self, name: Any) -> Any:  # type: ignore[override]
        found = await self.execute_command("HGETALL", name)
        if not self.answered.is_set():
            self.answered.set()
            await asyncio.wait_for(self.may_go_on.wait(), DEADLINE_S)
        return found


async def test_a_reading_from_before_the_drain_does_not_undo_it(valkey: ValkeyProcess) -> None:
    redis = _LateFirstAnswer(valkey.url)
    try:
        await redis.delete(DRAINED_KEY)
        drained = Drained(redis)
        early = asyncio.create_task(drained.read())
        await asyncio.wait_for(redis.answered.wait(), DEADLINE_S)
        await drained.change(URL, is_drained=True, present=[URL])
        redis.may_go_on.set()
        await early
        assert drained.has(URL)
        await drained.change(URL, is_drained=False, present=[URL])
        assert not drained.has(URL)
    finally:
        await redis.connection_pool.disconnect()
