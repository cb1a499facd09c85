"""Runs a batch beside live traffic, through a whole platform: does it yield to live requests, and how fast is it?

    python -m benchmarks.batches [--lines 10000] [--seconds 30] [--within 3600]

Starts `tiergate up` with the demo models. A live client requests a short stream twice a second, first alone for
`--seconds`, then for as long as the batch runs. Prints one JSON line; exits 1 unless the live time to first token (p95)
beside the batch is at most 1.5 times that alone plus one step, every line has one result, and the batch is done within
`--within` seconds.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import openai

from benchmarks.platform import Platform, end_on_sigterm, running_platform

LIVE_EVERY_S = 0.5
LIVE_TOKENS, LINE_TOKENS = 24, 8
POLL_S = 1.0


@dataclass
class Live:
    """Times to first token and between tokens, in milliseconds."""

    ttft_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    def p95_ms(self) -> float:
        return statistics.quantiles(self.ttft_ms, n=20, method="inclusive")[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30, help="of live traffic alone")
    parser.add_argument("--within", type=int, default=3600, help="seconds in which the batch has to be done")
    arguments = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, running_platform(Path(folder) / "data") as platform:
        report = asyncio.run(measure(platform, arguments))
    print(json.dumps(report))
    sys.exit(0 if report["holds"] else 1)


async def measure(platform: Platform, arguments: argparse.Namespace) -> dict[str, Any]:
    key = platform.enterprise_key
    async with openai.AsyncOpenAI(base_url=platform.base_url, api_key=key, timeout=120) as client:
        async with live_traffic(platform):
            await asyncio.sleep(5)  # warm-up
        async with live_traffic(platform) as alone:
            await asyncio.sleep(arguments.seconds)
        content = "".join(f"{json.dumps(line(number))}\n" for number in range(arguments.lines)).encode()
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        began_at = time.monotonic()
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        async with live_traffic(platform) as beside:
            while batch.status not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(POLL_S)
                batch = await client.batches.retrieve(batch.id)
                if time.monotonic() - began_at > arguments.within:
                    await client.batches.cancel(batch.id)
                    break
        batch_s = time.monotonic() - began_at
        output = await client.files.content(batch.output_file_id) if batch.output_file_id else None
        ids = [json.loads(each)["custom_id"] for each in output.text.splitlines()] if output else []
    step_ms = statistics.median(beside.step_ms)
    allowed_ms = 1.5 * alone.p95_ms() + step_ms
    is_whole = ids == [str(number) for number in range(arguments.lines)]
    return {
        "lines": arguments.lines,
        "batch_s": round(batch_s, 1),
        "lines_per_s": round(len(ids) / batch_s, 1),
        "status": batch.status,
        "each_line_once": is_whole,
        "live_requests": [len(alone.ttft_ms), len(beside.ttft_ms)],
        "live_ttft_p50_ms": [round(statistics.median(each.ttft_ms), 1) for each in (alone, beside)],
        "live_ttft_p95_ms": [round(alone.p95_ms(), 1), round(beside.p95_ms(), 1)],
        "step_ms": round(step_ms, 1),
        "allowed_ms": round(allowed_ms, 1),
        "holds": is_whole and beside.p95_ms() <= allowed_ms and batch_s <= arguments.within,
    }


def line(number: int) -> dict[str, Any]:
    content = f"Repeat: {random.Random(number).randrange(10**6)}"
    body = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": LINE_TOKENS}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


@asynccontextmanager
async def live_traffic(platform: Platform) -> AsyncIterator[Live]:
    """Sends a request every LIVE_EVERY_S, whether or not the previous one has been answered."""
    live = Live()
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
        asking = group.create_task(_ask_forever(session, platform, live, group))
        yield live
        asking.cancel()


async def _ask_forever(
    session: aiohttp.ClientSession, platform: Platform, live: Live, group: asyncio.TaskGroup
) -> None:
    while True:
        group.create_task(_ask(session, platform, live))
        await asyncio.sleep(LIVE_EVERY_S)


async def _ask(session: aiohttp.ClientSession, platform: Platform, live: Live) -> None:
    content = f"Repeat: {random.randrange(10**6)}"
    body = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": LIVE_TOKENS}
    began_at, times = time.perf_counter(), []
    async with session.post(f"{platform.base_url}/chat/completions", json=body | {"stream": True}) as reply:
        if reply.status != 200:
            raise SystemExit(f"a live request got {reply.status}: {await reply.text()}")
        async for event in reply.content:
            if b'"content":"' in event and b'"content":""' not in event:
                times.append(time.perf_counter())
    if times:
        live.ttft_ms.append((times[0] - began_at) * 1e3)
        live.step_ms += [(after - before) * 1e3 for before, after in pairwise(times)]


if __name__ == "__main__":
    main()
