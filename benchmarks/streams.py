"""Measures TTFT and tokens per second at 1, 8 and 32 concurrent streams, of any OpenAI-compatible server.

python -m benchmarks.streams --url http://127.0.0.1:8080/v1 --key tg-... --model small --model large
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.platform import end_on_sigterm, running_platform

PROMPT = "Tell me a story about a ship and its captain, and spell every name in it."


@dataclass(frozen=True)
class Stream:
    ttft_ms: float
    num_tokens: int


def main() -> None:
    arguments = _parse_arguments()
    end_on_sigterm()
    if arguments.url:
        return asyncio.run(measure_all(arguments))
    with tempfile.TemporaryDirectory() as folder, running_platform(Path(folder) / "data") as platform:
        arguments.url, arguments.key = platform.base_url, platform.enterprise_key
        asyncio.run(measure_all(arguments))


async def measure_all(arguments: argparse.Namespace) -> None:
    print(f"{'model':<22} {'streams':>7} {'ttft p50 ms':>12} {'ttft p95 ms':>12} {'tokens/s':>9}")
    headers = {"Authorization": f"Bearer {arguments.key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        for model in arguments.model or ["small", "large"]:
            await measure(session, arguments, model=model, concurrency=1, num_requests=1)  # warm-up
            for concurrency in arguments.concurrency:
                streams, wall_s = await measure(
                    session, arguments, model=model, concurrency=concurrency, num_requests=max(4, 2 * concurrency)
                )
                ttfts = sorted(stream.ttft_ms for stream in streams)
                rate = sum(stream.num_tokens for stream in streams) / wall_s
                p95 = ttfts[min(len(ttfts) - 1, round(0.95 * len(ttfts)))]
                print(f"{model:<22} {concurrency:>7} {statistics.median(ttfts):>12.1f} {p95:>12.1f} {rate:>9.0f}")


async def measure(
    session: aiohttp.ClientSession, arguments: argparse.Namespace, *, model: str, concurrency: int, num_requests: int
) -> tuple[list[Stream], float]:
    """Request `num_requests` streams, `concurrency` at a time; returns them and the seconds that they took together."""
    gate = asyncio.Semaphore(concurrency)

    async def one() -> Stream:
        async with gate:
            return await _stream(session, arguments, model)

    started = time.perf_counter()
    streams = await asyncio.gather(*(one() for _ in range(num_requests)))
    return list(streams), time.perf_counter() - started


async def _stream(session: aiohttp.ClientSession, arguments: argparse.Namespace, model: str) -> Stream:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": arguments.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first_at, num_tokens = time.perf_counter(), None, 0
    async with session.post(f"{arguments.url}/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise SystemExit(f"{reply.status}: {await reply.text()}")
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if first_at is None and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first_at = time.perf_counter()
            if chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
    if first_at is None:
        raise SystemExit("a stream ended without text")
    return Stream(ttft_ms=(first_at - started) * 1000, num_tokens=num_tokens)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="base URL with /v1; without it the platform is started")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", action="append")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    return parser.parse_args()


if __name__ == "__main__":
    main()
