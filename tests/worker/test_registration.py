"""The heartbeat against a real Valkey."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis.asyncio as redis

from protocol.load import HEARTBEAT_S, STALE_AFTER_S, WORKERS_KEY, BadSignature, LoadReport, Registration, unseal
from tests.support.valkey import ValkeyProcess
from worker.registration import Heartbeat

KEY = "worker-key"


def report() -> LoadReport:
    return LoadReport(
        worker_id="w-1",
        model="m",
        model_version="v",
        pool="small",
        adapters=(),
        num_running=0,
        num_waiting=0,
        max_num_seqs=1,
        max_waiting=1,
        max_model_len=16,
        num_blocks=1,
        num_free_blocks=1,
        block_size=16,
        is_draining=False,
        prompt_tokens_total=0,
        completion_tokens_total=0,
        discarded_tokens_total=0,
    )


@pytest.fixture
def valkey(tmp_path: Path) -> object:
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@asynccontextmanager
async def beating(valkey: ValkeyProcess) -> AsyncIterator[None]:
    heartbeat = Heartbeat(valkey.url, url="http://w:1", worker_key=KEY, report=report)
    task = asyncio.ensure_future(heartbeat.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await heartbeat.close()


async def read(valkey: ValkeyProcess) -> bytes | None:
    async with redis.Redis.from_url(valkey.url) as client:
        return await client.hget(WORKERS_KEY, "w-1")  # type: ignore[no-any-return,misc]


async def wait_for(valkey: ValkeyProcess, accept: Callable[[Registration], bool]) -> Registration:
    async with asyncio.timeout(STALE_AFTER_S):
        while True:
            sealed = await read(valkey)
            if sealed is not None and accept(found := unseal(sealed, worker_keys=(KEY,))):
                return found
            await asyncio.sleep(0.02)


async def test_a_beat_says_who_and_where_and_comes_again(valkey: ValkeyProcess) -> None:
    async with beating(valkey):
        first = await wait_for(valkey, lambda found: True)
        assert (first.url, first.load) == ("http://w:1", report())
        assert abs(first.sent_at_ms / 1e3 - time.time()) < STALE_AFTER_S
        await wait_for(valkey, lambda found: found.sent_at_ms > first.sent_at_ms)
        with pytest.raises(BadSignature):
            unseal(await read(valkey) or b"", worker_keys=("another",))


async def test_a_clean_stop_takes_it_back(valkey: ValkeyProcess) -> None:
    async with beating(valkey):
        await wait_for(valkey, lambda found: True)
    assert await read(valkey) is None


async def test_it_comes_back_after_redis_was_away_and_says_so_once(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tiergate.registration")
    async with beating(valkey):
        await wait_for(valkey, lambda found: True)
        valkey.stop()
        # Some more beats into the void.
        await asyncio.sleep(4 * HEARTBEAT_S)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        valkey.start()
        await wait_for(valkey, lambda found: True)
    assert [record.message for record in caplog.records][1:] == ["Redis is back"]


async def test_a_stop_without_redis_does_not_hang(valkey: ValkeyProcess) -> None:
    async with beating(valkey):
        await wait_for(valkey, lambda found: True)
        valkey.stop()
        started = time.monotonic()
    assert time.monotonic() - started < STALE_AFTER_S


def test_a_bad_url_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="scheme"):
        Heartbeat("http://nowhere", url="http://w:1", worker_key=KEY, report=report)
