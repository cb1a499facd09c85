"""Measures the tokens per second of the whole server, over HTTP."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.engine.__main__ import OURS
from benchmarks.engine.client import complete
from benchmarks.engine.models import make_model
from benchmarks.engine.servers import Server, running_server
from benchmarks.gpu.report import Report, Row, failure

_SHAPE = "mid"


def measure(report: Report, *, is_stand_in: bool) -> None:
    loads = ((1, 2, 2),) if is_stand_in else ((1, 128, 128), (32, 128, 128), (256, 128, 128))
    asyncio.run(_measure(report, loads, is_stand_in=is_stand_in))


async def _measure(report: Report, loads: tuple[tuple[int, int, int], ...], *, is_stand_in: bool) -> None:
    name = "tiny" if is_stand_in else _SHAPE
    try:
        async with _server(is_stand_in=is_stand_in) as server:
            for streams, num_prompt, num_output in loads:
                row: Row = {"name": f"server, {name}, {streams} streams of {num_prompt} + {num_output} tokens"}
                rates = [await _rate(server, streams, num_prompt, num_output, seed) for seed in range(2)]
                report.put(row | {"verdict": "right"} | ({} if is_stand_in else {"tokens_per_s": rates[-1]}))
    except (Exception, SystemExit) as error:
        report.put({"name": f"server, {name}", "verdict": failure(RuntimeError(str(error)))})


@contextlib.asynccontextmanager
async def _server(*, is_stand_in: bool) -> AsyncIterator[Server]:
    if not is_stand_in:
        command = f"{OURS} --max-num-seqs 256"
        async with running_server("ours", command, make_model(_SHAPE)) as server:
            yield server
        return
    from tests.support.checkpoints import make_tiny_checkpoint
    from tests.support.running_worker import running_worker

    with tempfile.TemporaryDirectory() as folder:
        tiny = make_tiny_checkpoint(
            Path(folder) / "tiny", hidden_size=128, num_heads=2, num_kv_heads=1, num_layers=1, max_model_len=64
        )
        # In this process, where the CPU stands in for a GPU.
        with running_worker(tiny, eager=True, max_num_seqs=2) as worker:
            async with running_server("ours", worker.base_url, tiny) as server:
                yield server


async def _rate(server: Server, streams: int, num_prompt: int, num_output: int, seed: int) -> float:
    rng = random.Random(seed)
    begun = time.perf_counter()
    prompts = [[rng.randrange(3, 300) for _ in range(num_prompt)] for _ in range(streams)]
    await asyncio.gather(*(complete(server, prompt, num_output, place=i) for i, prompt in enumerate(prompts)))
    return streams * num_output / (time.perf_counter() - begun)
