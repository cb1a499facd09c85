"""The workloads. Prompts are random ids, new in every run, so that a prefix cache helps only where that is measured."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from benchmarks.engine.client import Stream, complete
from benchmarks.engine.models import VOCAB_SIZE
from benchmarks.engine.servers import Server

PREFILL_TOKENS = 512
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 32, 128
Workload = Callable[..., Awaitable[tuple[list[Stream], float]]]


async def prefill(server: Server, *, seed: int) -> tuple[list[Stream], float]:
    """Prompts of 512 tokens, one after the other, each with one output token."""
    rng = _rng("prefill", seed)
    started = time.perf_counter()
    streams = [await complete(server, _prompt(rng, PREFILL_TOKENS), 1, place=i) for i in range(4)]
    return streams, time.perf_counter() - started


async def cached(server: Server, *, seed: int) -> tuple[list[Stream], float]:
    """The 512 tokens of a prompt just sent, followed by a few new ones, which shows the effect of a prefix cache."""
    rng = _rng("cached", seed)
    prefix = _prompt(rng, PREFILL_TOKENS)
    await complete(server, prefix, 1)
    started = time.perf_counter()
    streams = [await complete(server, prefix + _prompt(rng, 8), 1) for _ in range(4)]
    return streams, time.perf_counter() - started


def decode(concurrency: int) -> Workload:
    async def run(server: Server, *, seed: int) -> tuple[list[Stream], float]:
        rng = _rng(f"decode {concurrency}", seed)
        requests = [(_prompt(rng, DECODE_PROMPT_TOKENS), DECODE_TOKENS) for _ in range(concurrency)]
        return await _together(server, requests)

    return run


async def mixed(server: Server, *, seed: int) -> tuple[list[Stream], float]:
    """64 requests at once: prompts of 16 to 512 tokens, answers of 8 to 256, with the same lengths in every run."""
    lengths, rng = random.Random(1), _rng("mixed", seed)
    requests = [(_prompt(rng, lengths.randint(16, 512)), lengths.randint(8, 256)) for _ in range(64)]
    return await _together(server, requests)


async def _together(server: Server, requests: list[tuple[list[int], int]]) -> tuple[list[Stream], float]:
    started = time.perf_counter()
    streams = await asyncio.gather(
        *(complete(server, prompt, num_output, place=i) for i, (prompt, num_output) in enumerate(requests))
    )
    return list(streams), time.perf_counter() - started


def _rng(name: str, seed: int) -> random.Random:
    return random.Random(f"{name} {seed}")


def _prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(1, VOCAB_SIZE) for _ in range(num_tokens)]


WORKLOADS: dict[str, Workload] = {
    "prefill": prefill,
    "cached": cached,
    "c=1": decode(1),
    "c=8": decode(8),
    "c=32": decode(32),
    "mixed": mixed,
}

CONCURRENCY = {"c=1": 1, "c=8": 8, "c=32": 32}
"""How many sequences most steps of these workloads have."""
