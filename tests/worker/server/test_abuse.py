"""Many long requests that are given up cost nothing more."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.running_worker import RunningWorker, running_worker

NUM_REQUESTS = 200
DEADLINE_S = 20
"""Generous for a machine that is busy otherwise; computing what was given up would take minutes."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    checkpoint = make_tiny_checkpoint(tmp_path / "tiny", max_model_len=16_384)
    with running_worker(checkpoint, kv_blocks=2048) as running:
        yield running


async def test_after_many_abandoned_requests_a_normal_one_is_answered_soon(worker: RunningWorker) -> None:
    url, report = f"{worker.base_url}/completions", worker.replica.engine.report
    generated = report().completion_tokens_total
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(i: int) -> None:
            # Every prompt is another one, so that none is in the cache; the text ones are tokenised in a thread.
            prompt: object = [3 + i] * 10_000 if i % 2 else f"{i} fox" * 3000
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 100, "stream": i % 4 < 2}
            async with session.post(url, json=body) as reply:
                await reply.read()

        tasks = [asyncio.ensure_future(ask(i)) for i in range(NUM_REQUESTS)]
        await wait_until(lambda: report().num_running > 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_S):
            async with session.post(url, json={"model": "tiny", "prompt": "Hi", "max_tokens": 5}) as reply:
                assert reply.status == 200
    await wait_until(lambda: report().num_free_blocks == report().num_blocks)
    assert report().completion_tokens_total - generated < NUM_REQUESTS


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
