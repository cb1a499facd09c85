"""Measures streams beside a prompt as long as the context window: their time per output token before and during it.

    python -m benchmarks.long_prompt [--model tiny] [--tokens 131000] [--streams 8]

Starts a worker with random weights. `--streams` clients request 128 tokens each, again and again. The promise is that
the p99 of their time per output token, while the long prompt is computed, is at most twice that before. Prints one JSON
line; exits 1 if the promise is broken.
"""

import argparse
import asyncio
import random
import sys

from benchmarks.engine.client import Stream, complete
from benchmarks.engine.models import SHAPES, make_model
from benchmarks.engine.servers import Server, running_server
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.platform import end_on_sigterm

WORKER = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}}"
VOCAB = range(10, 8000)
WARM_UP_S = 3.0
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--tokens", type=int, default=131_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--before", type=float, default=20.0, help="seconds to measure without the prompt")
    arguments = parser.parse_args()
    end_on_sigterm()
    report = Report()
    report.add(asyncio.run(measure(arguments)))
    report.print_table()
    return 0 if report.has_passed else 1


async def measure(arguments: argparse.Namespace) -> Row:
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
    return Row(
        benchmark="long_prompt.tpot_p99_of_streams_beside",
        unit="ms",
        value=quantile(beside, 0.99),
        yardstick=quantile(before, 0.99),
        ratio=quantile(beside, 0.99) / quantile(before, 0.99),
        gate=Gate("<=", 2, of="ratio"),
        details={
            "prompt_tokens": arguments.tokens,
            "first_token_s": answer.ttft_ms / 1e3,
            "before_p50_ms": quantile(before, 0.5),
            "beside_p50_ms": quantile(beside, 0.5),
            "streams_before": len(before),
            "streams_beside": len(beside),
        },
    )


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
    sys.exit(main())
