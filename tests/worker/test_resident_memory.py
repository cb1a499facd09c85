"""What a worker's process holds: what it needs, however much it has served."""

import asyncio
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.checkpoints import make_tiny_checkpoint
from tests.worker.test_main import process

LARGE = Path(__file__).parents[2] / "demo" / "models" / "large"
NUM_AT_ONCE = 32
DEADLINE_S = 240


async def ask(url: str, numbers: range) -> None:
    """Short requests of many kinds, each with another prompt."""
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(session: aiohttp.ClientSession, i: int) -> None:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"What is {i} + {7 * i}?"}],
            "max_tokens": 4,
            "stream": i % 2 == 0,
        }
        if i % 3 == 0:
            body |= {"logprobs": True, "top_logprobs": 3}
        if i % 5 == 0:
            body |= {"temperature": 1, "seed": i, "stop": ["a", "b"]}
        async with places, session.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
            await reply.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(one(session, i) for i in numbers))


@pytest.mark.long
@pytest.mark.parametrize("has_compiler", [True, False])
async def test_ten_thousand_requests_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_compiler: bool
) -> None:
    if not has_compiler:
        # Torch's paths, which other processors have, too.
        monkeypatch.setenv("CXX", "false")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no kernels"))
    checkpoint = make_tiny_checkpoint(tmp_path / "tiny")
    with process(checkpoint) as (running, url):
        worker = psutil.Process(running.pid)
        await ask(url, range(1000))
        first = worker.memory_info().rss
        await ask(url, range(1000, 10_000))
        assert worker.memory_info().rss - first < 0.02 * first


def test_an_idle_worker_holds_little_beside_weights_and_cache() -> None:
    """The demonstration's large model: 14 MB of weights, a cache of 128 MiB."""
    with process(LARGE, NAME="large") as (running, _):
        worker = psutil.Process(running.pid)
        assert settled(worker) <= 700 << 20
        assert worker.memory_full_info().pss <= 600 << 20


def settled(process: psutil.Process) -> int:
    """Its resident bytes once they have stayed for a second."""
    ends_at, bytes_before = time.monotonic() + DEADLINE_S, -1
    while time.monotonic() < ends_at:
        now = process.memory_info().rss
        if now == bytes_before:
            return now
        bytes_before = now
        time.sleep(1)
    raise AssertionError("does not settle")
