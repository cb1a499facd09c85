"""Streams beside a prompt as long as the window: their time per output token before and while it is computed.

    python -m benchmarks.long_prompt [--model tiny] [--tokens 131000] [--streams 8]

Starts a worker of random weights. Each stream's tokens are timed one by one; the promise is: their p99 while the prompt
is computed is at most twice that before.
"""

import argparse
import asyncio
import random
import sys
import time

from benchmarks.engine.client import complete
from benchmarks.engine.models import SHAPES, make_model
from benchmarks.engine.servers import Server, running_server

WORKER = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}}"
VOCAB = range(10, 8000)
WARM_UP_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--tokens", type=int, default=131_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--before", type=float, default=10.0, help="seconds to measure without the prompt")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments))


async def measure(arguments: argparse.Namespace) -> None:
    rng = random.Random(0)
    async with running_server("long-prompt", WORKER, make_model(arguments.model)) as server:
        gaps: list[tuple[float, float]] = []
        tasks = [asyncio.create_task(stream(server, rng, gaps)) for _ in range(arguments.streams)]
        await asyncio.sleep(WARM_UP_S)
        started_at = time.perf_counter()
        await asyncio.sleep(arguments.before)
        long_prompt = rng.choices(VOCAB, k=arguments.tokens)
        sent_at = time.perf_counter()
        answer = await complete(server, long_prompt, 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    before = sorted(gap for at, gap in gaps if started_at < at < sent_at)
    beside = sorted(gap for at, gap in gaps if sent_at < at < answer.first_at)
    print(f"prompt of {arguments.tokens} tokens: first token after {answer.ttft_ms / 1e3:.1f} s")
    print(f"{'':<8} {'p50 ms':>8} {'p99 ms':>8} {'tokens':>8}   between two tokens of a stream")
    for name, values in (("before", before), ("beside", beside)):
        print(f"{name:<8} {quantile(values, 0.5):>8.2f} {quantile(values, 0.99):>8.2f} {len(values):>8}")
    for share in (0.5, 0.99):
        ratio = quantile(beside, share) / quantile(before, share)
        print(f"p{share * 100:.0f} beside / before: {ratio:.2f} (promised: at most 2)")


async def stream(server: Server, rng: random.Random, gaps: list[tuple[float, float]]) -> None:
    """One answer without end, of which every token's distance to the one before is noted with its time."""
    body = {
        "model": server.model,
        "prompt": rng.choices(VOCAB, k=32),
        "max_tokens": 100_000,
        "ignore_eos": True,
        "stream": True,
    }
    last_at = None
    async with server.session.post(f"{server.base_url}/completions", json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                if last_at is not None:
                    gaps.append((now, now - last_at))
                last_at = now


def quantile(values: list[float], share: float) -> float:
    """In milliseconds, of sorted seconds."""
    return values[min(len(values) - 1, round(share * len(values)))] * 1e3


if __name__ == "__main__":
    main()
