"""Tokens from a tiny real model through the whole engine."""

import asyncio
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.engine_requests import collect, last_output, make_request
from tests.worker.engine.conftest import ADAPTERS, BY_INTERPRETER, on_both_runners
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest
from worker.engine.settings import EngineSettings

PROMPT = [5, 17, 99, 200, 42, 7]
EOS = (2, 0)


@on_both_runners
async def test_64_greedy_tokens_equal_those_of_transformers(engine: Engine, checkpoint: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    ours = await collect(engine, make_request(PROMPT, max_tokens=64, ignore_eos=False, min_tokens=64))
    assert ours == expected[0, len(PROMPT) :].tolist()


def mixed_requests(temperature: float, *, num: int = 32, max_tokens: int = 24) -> list[EngineRequest]:
    """Requests of all lengths, each eighth of them without an adapter, the rest with four."""
    rng = random.Random(1)
    names = [None, *ADAPTERS, *ADAPTERS[:3]]
    return [
        make_request(
            [rng.randrange(384) for _ in range(1 + 7 * i)],
            max_tokens=max_tokens,
            temperature=temperature,
            seed=i,
            adapter=names[i % 8],
        )
        for i in range(num)
    ]


@pytest.mark.parametrize(
    ("runs_on", "temperature"),
    [("cpu", 0.0), ("cpu", 4.0), pytest.param("gpu", 0.0, marks=BY_INTERPRETER)],
    indirect=["runs_on"],
)
async def test_streams_with_4_adapters_mixed_return_what_each_returns_alone(
    engine: Engine, runs_on: str, temperature: float
) -> None:
    requests = mixed_requests(temperature, **({"num": 9, "max_tokens": 8} if runs_on == "gpu" else {}))
    alone = [await collect(engine, request) for request in requests]
    together = await asyncio.gather(*(collect(engine, request) for request in requests))
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == len(requests)


@pytest.mark.parametrize(
    ("runs_on", "temperature"),
    [("cpu", 0.0), ("cpu", 4.0), pytest.param("gpu", 4.0, marks=BY_INTERPRETER)],
    indirect=["runs_on"],
)
async def test_small_steps_and_preemption_change_no_token(
    engine: Engine, runs_on: str, checkpoint: Path, adapters: dict[str, Path], temperature: float
) -> None:
    requests = mixed_requests(temperature, **({"num": 9, "max_tokens": 24} if runs_on == "gpu" else {"max_tokens": 60}))
    expected = [await collect(engine, request) for request in requests]
    settings = EngineSettings(
        model_path=checkpoint,
        num_threads=1,
        adapters=adapters,
        max_num_seqs=16,
        max_batched_tokens=23,
        is_eager=True,
        **({"max_model_len": 128, "num_blocks": 8} if runs_on == "gpu" else {"num_blocks": 40}),
    )
    cramped = Engine.load(settings)
    cramped.start()
    try:
        got = await asyncio.gather(*(collect(cramped, request) for request in requests))
        assert got == expected
        assert cramped.report().num_preemptions_total > 0
    finally:
        await cramped.stop()


@on_both_runners
async def test_penalties_and_log_probabilities_do_not_depend_on_the_company(
    engine: Engine, runs_on: str, checkpoint: Path
) -> None:
    rng = random.Random(2)
    num, max_tokens = (7, 30) if runs_on == "gpu" else (12, 90)
    requests = [
        make_request(
            [rng.randrange(384) for _ in range(1 + 4 * i)],
            max_tokens=max_tokens,
            temperature=[0.0, 2.0][i % 2],
            seed=i,
            frequency_penalty=i % 3 / 3,
            repetition_penalty=1 + i % 4 / 10,
            logit_bias={i: 5.0},
            num_logprobs=2,
            prompt_logprobs=0 if i % 5 == 1 else None,
            logprob_token_ids=(3, 1) if i % 6 == 3 else (),
            allowed_token_ids=array("q", range(3, 300, 7)) if i % 4 == 2 else None,
            bad_words=((17,), (10, 17), (24, 31), (31, 24)) if i % 3 == 2 else (),
        )
        for i in range(num)
    ]
    alone = [await collect_logprobs(engine, request) for request in requests]
    settings = EngineSettings(
        model_path=checkpoint,
        num_threads=1,
        max_num_seqs=12,
        max_batched_tokens=19,
        is_eager=True,
        **({"max_model_len": 64, "num_blocks": 4} if runs_on == "gpu" else {"num_blocks": 32}),
    )
    cramped = Engine.load(settings)
    cramped.start()
    got = await asyncio.gather(*(collect_logprobs(cramped, request) for request in requests))
    num_preemptions = cramped.report().num_preemptions_total
    await cramped.stop()
    assert num_preemptions > 0
    for (token_ids, logprobs), (expected_ids, expected) in zip(got, alone, strict=True):
        assert token_ids == expected_ids
        assert logprobs == pytest.approx(expected, abs=1e-4)
    assert len(alone[1][1]) == max_tokens + len(requests[1].prompt_ids) - 1
    assert set(alone[2][0]) <= set(range(3, 300, 7)) - {17}


async def collect_logprobs(engine: Engine, request: EngineRequest) -> tuple[list[int], list[float]]:
    """The answer's ids; log-probabilities of the prompt, if asked for, and of the answer."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    async for output in engine.generate(request):
        token_ids += output.token_ids
        logprobs += [each.logprob for each in (*output.prompt_logprobs, *output.logprobs)]
    return token_ids, logprobs


@on_both_runners
async def test_an_unseeded_request_draws_anew_each_time(engine: Engine) -> None:
    drawn = [tuple(await collect(engine, make_request(PROMPT, temperature=8.0))) for _ in range(3)]
    assert len(set(drawn)) == 3


@on_both_runners
async def test_a_second_prompt_with_the_same_beginning_is_partly_cached(engine: Engine) -> None:
    prompt = list(range(100, 150))
    assert (await last_output(engine, make_request(prompt))).cached_tokens == 0
    again = await last_output(engine, make_request([*prompt, 7]))
    assert again.cached_tokens == 48
    assert (await last_output(engine, make_request(prompt, cache_salt="another tenant"))).cached_tokens == 0
    assert (await last_output(engine, make_request(prompt, adapter="one"))).cached_tokens == 0


@on_both_runners
async def test_the_eos_token_ends_with_stop_and_is_counted(engine: Engine) -> None:
    request = make_request(PROMPT, ignore_eos=False, logit_bias={EOS[0]: 100.0})
    assert await collect(engine, request) == [EOS[0]]
    assert (await last_output(engine, request)).finish_reason == "stop"


@on_both_runners
async def test_ignored_eos_runs_to_the_limit(engine: Engine) -> None:
    output = await last_output(engine, make_request(PROMPT, max_tokens=5, logit_bias={EOS[0]: 100.0}))
    assert output.finish_reason == "length"


@on_both_runners
async def test_a_stop_token_ends_even_when_eos_is_ignored(engine: Engine) -> None:
    greedy = await collect(engine, make_request(PROMPT))
    stopped = await collect(engine, make_request(PROMPT, stop_token_ids=(greedy[3],)))
    assert stopped == greedy[: greedy.index(greedy[3]) + 1]


@on_both_runners
async def test_min_tokens_holds_back_every_end(engine: Engine) -> None:
    request = make_request(
        PROMPT, ignore_eos=False, min_tokens=4, logit_bias={EOS[0]: 100.0, 9: 90.0}, stop_token_ids=(9,)
    )
    tokens = await collect(engine, request)
    assert len(tokens) == 5 and tokens[-1] == EOS[0]
    assert not {*EOS, 9} & set(tokens[:4])


async def test_a_window_filled_to_the_last_token_ends_with_length(engine: Engine) -> None:
    output = await last_output(engine, make_request([7] * 511, max_tokens=1))
    assert output.finish_reason == "length"


@on_both_runners
async def test_a_prompt_of_one_token_is_answered(engine: Engine) -> None:
    assert len(await collect(engine, make_request([1], max_tokens=3))) == 3


@on_both_runners
async def test_times_and_totals_add_up(engine: Engine) -> None:
    before = engine.report()
    output = await last_output(engine, make_request(PROMPT, max_tokens=5))
    after = engine.report()
    assert output.compute_ms > 0 and output.queue_ms >= 0
    assert after.prompt_tokens_total - before.prompt_tokens_total == len(PROMPT)
    assert after.completion_tokens_total - before.completion_tokens_total == 5
    assert after.num_free_blocks == after.num_blocks


@on_both_runners
async def test_the_same_id_may_be_used_again_once_it_ended(engine: Engine) -> None:
    request = make_request(PROMPT)
    assert await collect(engine, request) == await collect(engine, replace(request))
