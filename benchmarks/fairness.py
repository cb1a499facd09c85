"""Measures fairness from outside: the TTFT of a tenant that sends one request per second, alone and beside a flood.

    python -m benchmarks.fairness [--model tiny] [--seconds 30] [--flood 100]

Starts a worker with random weights. The other tenant, of the same class, keeps `--flood` requests open all the time,
more than run at once. Both phases are measured in one run. The promise is at most twice the time alone plus one step.
Prints one JSON line; exits 1 if the promise is broken.
"""

import argparse
import asyncio
import random
import statistics
import sys

from benchmarks.engine.client import Stream, complete
from benchmarks.engine.models import SHAPES, make_model
from benchmarks.engine.servers import Server, running_server
from benchmarks.gateway.report import Gate, Report, Row
from benchmarks.platform import end_on_sigterm

KEY = "benchmark"
WORKER = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}} --api-key {KEY}"
VOCAB = range(10, 8000)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 8
FLOOD_PROMPT_TOKENS, FLOOD_OUTPUT_TOKENS = 128, 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--seconds", type=int, default=30, help="of each of the two halves")
    parser.add_argument("--flood", type=int, default=100, help="requests that the other tenant keeps open")
    arguments = parser.parse_args()
    end_on_sigterm()
    report = Report()
    report.add(asyncio.run(measure(arguments)))
    report.print_table()
    return 0 if report.has_passed else 1


async def measure(arguments: argparse.Namespace) -> Row:
    async with running_server("fairness", WORKER, make_model(arguments.model), key=KEY) as server:
        await ask_each_second(server, 3)  # warm-up
        alone = await ask_each_second(server, arguments.seconds)
        flood: list[Stream] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep_asking(server, flood, seed)) for seed in range(arguments.flood)]
            # Measure only once the flood has taken every slot.
            while len(flood) < arguments.flood:
                await ask_each_second(server, 1)
            beside = await ask_each_second(server, arguments.seconds)
            for task in tasks:
                task.cancel()
    step_ms = statistics.median(stream.tpot_ms or 0.0 for stream in flood)
    return Row(
        benchmark="fairness.ttft_p95_beside_a_flood",
        unit="ms",
        value=ttft_ms(beside, 0.95),
        yardstick=2 * ttft_ms(alone, 0.95) + step_ms,
        ratio=ttft_ms(beside, 0.95) / (2 * ttft_ms(alone, 0.95) + step_ms),
        gate=Gate("<=", 1, of="ratio"),
        details={
            "alone_p50_ms": ttft_ms(alone, 0.5),
            "alone_p95_ms": ttft_ms(alone, 0.95),
            "beside_p50_ms": ttft_ms(beside, 0.5),
            "step_ms": step_ms,
        },
    )


async def ask_each_second(server: Server, seconds: int) -> list[Stream]:
    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(seconds):
            tasks.append(group.create_task(ask(server, "polite", PROMPT_TOKENS, OUTPUT_TOKENS, random.Random())))
            await asyncio.sleep(1)
    return [task.result() for task in tasks]


async def keep_asking(server: Server, streams: list[Stream], seed: int) -> None:
    rng = random.Random(seed)
    while True:
        streams.append(await ask(server, "flood", FLOOD_PROMPT_TOKENS, FLOOD_OUTPUT_TOKENS, rng))


async def ask(server: Server, tenant: str, num_prompt: int, num_output: int, rng: random.Random) -> Stream:
    """Send a request with a new prompt. Priority and weight are the same for all requests."""
    headers = {"X-Tiergate-Tenant": tenant}
    return await complete(server, rng.choices(VOCAB, k=num_prompt), num_output, headers=headers)


def ttft_ms(streams: list[Stream], quantile: float) -> float:
    values = sorted(stream.ttft_ms for stream in streams)
    return values[min(len(values) - 1, round(quantile * len(values)))]


if __name__ == "__main__":
    sys.exit(main())
