import asyncio

import pytest

from worker.server.serving import EngineBroken, watch


async def test_a_broken_engine_ends_the_process() -> None:
    states = iter([False, True])
    async with asyncio.timeout(10):
        with pytest.raises(EngineBroken):
            await watch(lambda: next(states))
