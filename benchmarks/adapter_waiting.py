"""Measures whether requests for the base model wait for requests with adapters: 64 adapters over 8 slots.

    python -m benchmarks.adapter_waiting [--requests 200] [--rate 4]

Requests arrive at random times, which are the same in both runs. Two of three use an adapter in one run and the base
model in the other. The time to first token is measured for the third, which uses the base model in both. Prints one
JSON line; exits 1 if its p95 with adapters is more than 1.5 times that without.
"""

import argparse
import asyncio
import json
import random
import sys
from dataclasses import replace
from itertools import accumulate

from benchmarks.engine.adapters import make_adapter
from benchmarks.engine.client import complete
from benchmarks.engine.models import VOCAB_SIZE, make_model
from benchmarks.engine.servers import Server, running_server

NUM_ADAPTERS, NUM_SLOTS = 64, 8
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 32
MOST_RATIO = 1.5
_BASE_EVERY = 3
_COMMAND = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}}"


async def first_tokens_ms(server: Server, *, num_requests: int, rate: float, seed: int) -> list[float]:
    """The time to first token of each request that always uses the base model, in order of arrival."""
    rng = random.Random(seed)
    arrivals = list(accumulate(rng.expovariate(rate) for _ in range(num_requests)))
    prompts = [[rng.randrange(10, VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in arrivals]
    adapters = [rng.randrange(NUM_ADAPTERS) for _ in arrivals]
    base = replace(server, adapters=())
    started_at = asyncio.get_running_loop().time()

    async def ask(number: int) -> float:
        await asyncio.sleep(started_at + arrivals[number] - asyncio.get_running_loop().time())
        asked = server if number % _BASE_EVERY else base
        return (await complete(asked, prompts[number], OUTPUT_TOKENS, place=adapters[number])).ttft_ms

    times = await asyncio.gather(*map(ask, range(num_requests)))
    return times[::_BASE_EVERY]


async def measure(*, num_requests: int, rate: float, seed: int) -> dict[str, object]:
    folder = make_model("small")
    adapters = {f"a{i}": make_adapter(folder, i) for i in range(NUM_ADAPTERS)}
    options = "".join(f" --adapter {name}={path}" for name, path in adapters.items())
    options += f" --adapter-slots {NUM_SLOTS}"
    p95_ms = {}
    for name, command, used in (("without", _COMMAND, ()), ("with", _COMMAND + options, tuple(adapters))):
        async with running_server(name, command, folder) as server:
            times = await first_tokens_ms(
                replace(server, adapters=used), num_requests=num_requests, rate=rate, seed=seed
            )
        p95_ms[name] = sorted(times)[int(0.95 * (len(times) - 1))]
    return {
        "benchmark": "adapter_waiting",
        "adapters": NUM_ADAPTERS,
        "slots": NUM_SLOTS,
        "requests": num_requests,
        "rate_per_s": rate,
        "base_ttft_p95_ms": {name: round(value, 1) for name, value in p95_ms.items()},
        "ratio": round(p95_ms["with"] / p95_ms["without"], 2),
        "yardstick": MOST_RATIO,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = asyncio.run(measure(num_requests=options.requests, rate=options.rate, seed=options.seed))
    print(json.dumps(found))
    return 0 if found["ratio"] <= MOST_RATIO else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
