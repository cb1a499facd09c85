"""Measures streams beside a prompt as long as the context window: their time per output token before and during it.

    python -m benchmarks.long_prompt [--model tiny] [--tokens 131000] [--streams 8]

Starts a worker with random weights. `--streams` clients request 128 tokens each, again and again. The promise is that
the p99 of their time per output token, while the long prompt is computed, is at most twice that before.
"""

import argparse
import asyncio
import random
import sys

from benchmarks.engine.client import Stream, complete
from benchmarks.engine.models import SHAPES, make_model
from benchmarks.engine.servers import Server, running_server
from benchmarks.platform import end_on_sigterm

WORKER = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}}"
VOCAB = range(10, 8000)
WARM_UP_S = 3.0
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--tokens", type=int, default=131_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--before", type=float, default=20.0, help="seconds to measure without the prompt")
    arguments = parser.parse_args()
    end_on_sigterm()
    asyncio.run(measure(arguments))


async def measure(arguments: argparse.Namespace) -> None:
    long_prompt = random.Random(0).choices(VOCAB, k=arguments.tokens)
    async with running_server("long-prompt", WORKER, make_model(arguments.model)) as server:
        streams: list[Stream] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep_asking(server, streams, seed)) for seed in range(arguments.streams)]
            await asyncio.sleep(WARM_UP_S)
            streams.clear()
            await asyncio.sleep(arguments.before)
            answer = await complete(server, long_prompt, 2)
            for task in tasks:
                task.cancel()
    before = tpots_ms([each for each in streams if each.ended_at < answer.started_at])
    beside = tpots_ms(
        [each for each in streams if answer.started_at < each.first_at and each.ended_at < answer.first_at]
    )
    print(f"prompt of {arguments.tokens} tokens: first token after {answer.ttft_ms / 1e3:.1f} s")
    print(f"{'':<8} {'p50 ms':>8} {'p99 ms':>8} {'streams':>8}   time per output token")
    for name, values in (("before", before), ("beside", beside)):
        print(f"{name:<8} {quantile(values, 0.5):>8.2f} {quantile(values, 0.99):>8.2f} {len(values):>8}")
    print(f"p99 beside / before: {quantile(beside, 0.99) / quantile(before, 0.99):.2f} (promised: at most 2)")


async def keep_asking(server: Server, streams: list[Stream], seed: int) -> None:
    rng = random.Random(seed + 1)
    while True:
        streams.append(await complete(server, rng.choices(VOCAB, k=PROMPT_TOKENS), OUTPUT_TOKENS))


def tpots_ms(streams: list[Stream]) -> list[float]:
    if not streams:
        raise SystemExit("no stream began and ended in time; give more tokens or more seconds")
    return sorted(each.tpot_ms or 0.0 for each in streams)


def quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, round(share * len(values)))]


if __name__ == "__main__":
    main()
