"""Measures the cost of constrained answers: throughput, masks, compiling, and gaps of other streams as schemas arrive.

    python -m benchmarks.guided            # one JSON line; exit status 1 if a gate is missed

Runs one engine in this process, on the engine benchmark's small model. Rounds with and without constraints alternate,
so that noise of the machine affects both; the median of the rounds' ratios counts.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from itertools import pairwise
from statistics import median

import numpy as np

from benchmarks.engine.models import make_model
from protocol.guided import JsonSchema
from text.tokenizer import Tokenizer
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.settings import EngineSettings
from worker.guided import Grammar, GrammarCompiler, Vocabulary
from worker.guided.compiler import compile_grammar
from worker.guided.masks import MaskFiller

MAX_COST = 0.10
MAX_FILL_US = 30.0
MAX_COMPILE_MS = 50.0
MAX_GAP_GROWTH = 0.10
_NUM_STREAMS = 32
_NUM_SCHEMAS = 100
_GAP_TOKENS = 200
"""Steps per round. Of only 48 steps, the 99th percentile would be the one that the machine disturbed most."""
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["customer", "supplier", "employee"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "note": {"anyOf": [{"type": "string", "maxLength": 60}, {"type": "null"}]},
    },
    "required": ["name", "age", "kind", "tags", "note"],
    "additionalProperties": False,
}
_PEOPLE = {"type": "array", "items": _PERSON, "minItems": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48, help="of each of 32 answers in a round")
    arguments = parser.parse_args()
    figures = asyncio.run(_measure(arguments.rounds, arguments.tokens))
    gates = {
        "cost": figures["cost"] <= MAX_COST,
        "fill": figures["fill_us_a_row"] <= MAX_FILL_US,
        "compile": figures["compile_ms_p95"] < MAX_COMPILE_MS,
        "gaps": figures["gap_growth_p99"] <= MAX_GAP_GROWTH,
    }
    print(json.dumps(figures | {"gates": gates, "cores": os.cpu_count()}))
    sys.exit(0 if all(gates.values()) else 1)


async def _measure(rounds: int, num_tokens: int) -> dict[str, float]:
    folder = make_model("small")
    engine = Engine.load(EngineSettings(model_path=folder))
    tokenizer = Tokenizer.from_folder(folder)
    vocabulary = Vocabulary(tokenizer, vocab_size=engine.vocab_size, eos_token_ids=engine.eos_token_ids)
    engine.start()
    try:
        figures = await _throughput(engine, vocabulary, rounds, num_tokens)
        return figures | _fill(vocabulary) | _compile(vocabulary) | await _gaps(engine, vocabulary, rounds)
    finally:
        await engine.stop()


def _request(i: int, num_tokens: int, grammar: Grammar | None) -> EngineRequest:
    rng = random.Random(i)
    sampling = SamplingParams(temperature=1.0, seed=i, max_tokens=num_tokens, ignore_eos=True)
    prompt = [rng.randrange(300, 8000) for _ in range(32)]
    return EngineRequest(request_id=str(i), prompt_ids=prompt, sampling=sampling, grammar=grammar)


async def _answer(engine: Engine, request: EngineRequest) -> list[tuple[float, int]]:
    """The time of each output, and its number of tokens."""
    return [(time.monotonic(), len(output.token_ids)) async for output in engine.generate(request)]


async def _throughput(engine: Engine, vocabulary: Vocabulary, rounds: int, num_tokens: int) -> dict[str, float]:
    grammar = compile_grammar(vocabulary, JsonSchema(json.dumps(_PEOPLE)))
    ratios, rates = [], dict[bool, list[float]](((False, []), (True, [])))
    num_outputs = 0
    for number in range(rounds + 1):
        found = {}
        for is_constrained in (False, True):
            wanted = grammar if is_constrained else None
            started_at = time.monotonic()
            answers = await asyncio.gather(
                *(_answer(engine, _request(i, num_tokens, wanted)) for i in range(_NUM_STREAMS))
            )
            total = sum(count for answer in answers for _, count in answer)
            assert total == _NUM_STREAMS * num_tokens, total
            found[is_constrained] = total / (time.monotonic() - started_at)
            num_outputs = sum(map(len, answers))
        # The first round only warms up.
        if number:
            ratios.append(found[True] / found[False])
            for is_constrained, rate in found.items():
                rates[is_constrained].append(rate)
    return {
        "cost": round(1 - median(ratios), 4),
        "constrained_tokens_per_s": round(median(rates[True]), 1),
        "free_tokens_per_s": round(median(rates[False]), 1),
        "forced_share": round(1 - num_outputs / (_NUM_STREAMS * num_tokens), 3),
    }


def _fill(vocabulary: Vocabulary) -> dict[str, float]:
    """Times filling a batch's masks while each of its answers takes its own path."""
    rng = random.Random(1)
    grammar = compile_grammar(vocabulary, JsonSchema(json.dumps(_PEOPLE)))
    matchers = [grammar.start() for _ in range(_NUM_STREAMS)]
    filler = MaskFiller(vocabulary.vocab_size)
    costs_us = []
    for _ in range(300):
        started_at = time.perf_counter()
        future = filler.begin(matchers)
        assert future is not None
        masks = future.result()
        costs_us.append((time.perf_counter() - started_at) * 1e6 / _NUM_STREAMS)
        bits = np.unpackbits(masks.words.view(np.uint8), axis=1, bitorder="little")
        for matcher, row in zip(matchers, bits, strict=True):
            matcher.accept(int(rng.choice(np.flatnonzero(row))))
    filler.close()
    return {
        "fill_us_a_row": round(float(np.mean(costs_us)), 2),
        "fill_us_a_row_p50": round(float(np.percentile(costs_us, 50)), 2),
        "fill_us_a_row_p99": round(float(np.percentile(costs_us, 99)), 2),
    }


def _new_schema(number: int) -> JsonSchema:
    """A schema that was not requested before."""
    properties = _PERSON["properties"] | {f"field_{number}": {"type": "string", "pattern": f"^[A-Z]{{2}}-{number}$"}}  # type: ignore[operator]
    return JsonSchema(json.dumps(_PERSON | {"properties": properties}))


def _compile(vocabulary: Vocabulary) -> dict[str, float]:
    costs_ms = []
    for number in range(_NUM_SCHEMAS):
        started_at = time.perf_counter()
        compile_grammar(vocabulary, _new_schema(-1 - number))
        costs_ms.append((time.perf_counter() - started_at) * 1e3)
    p50, p95 = np.percentile(costs_ms, [50, 95])
    return {"compile_ms_p50": round(float(p50), 2), "compile_ms_p95": round(float(p95), 2)}


async def _gaps(engine: Engine, vocabulary: Vocabulary, rounds: int) -> dict[str, float]:
    compiler = GrammarCompiler(vocabulary)
    ratios, alone, beside = [], [], []
    started_at = time.monotonic()
    await _p99_gap(engine)
    pause_s = (time.monotonic() - started_at) / _NUM_SCHEMAS / 1.2

    async def while_schemas_arrive(first: int) -> float:
        arriving = asyncio.ensure_future(_arrive(compiler, first, pause_s))
        gap_s = await _p99_gap(engine)
        await arriving
        return gap_s

    for number in range(rounds):
        first = number * _NUM_SCHEMAS
        # Each goes first in turn, since a machine's noise comes in waves.
        if number % 2:
            busy_s, quiet_s = await while_schemas_arrive(first), await _p99_gap(engine)
        else:
            quiet_s, busy_s = await _p99_gap(engine), await while_schemas_arrive(first)
        ratios.append(busy_s / quiet_s)
        alone.append(quiet_s)
        beside.append(busy_s)
    compiler.close()
    return {
        "gap_growth_p99": round(median(ratios) - 1, 4),
        "gap_ms_p99": round(median(alone) * 1e3, 1),
        "gap_ms_p99_while_schemas_arrive": round(median(beside) * 1e3, 1),
    }


async def _p99_gap(engine: Engine) -> float:
    answers = await asyncio.gather(*(_answer(engine, _request(i, _GAP_TOKENS, None)) for i in range(_NUM_STREAMS)))
    gaps = [later - sooner for answer in answers for (sooner, _), (later, _) in pairwise(answer)]
    return float(np.percentile(gaps, 99))


async def _arrive(compiler: GrammarCompiler, first: int, pause_s: float) -> None:
    """Submit schemas at a fixed rate, whether or not the previous one is compiled."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(_NUM_SCHEMAS):
            tasks.create_task(compiler.compile(_new_schema(first + number), salt=""))
            await asyncio.sleep(pause_s)


if __name__ == "__main__":
    main()
