"""In float32 a request has the same greedy tokens, and logprobs within 1e-4, whatever happens around it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.engine_requests import collect, make_request
from tests.support.recording import NUM_OUTPUT, PROMPT, Recorded, random_requests, recording


def assert_same(got: Recorded, expected: Recorded) -> None:
    assert got.token_ids == expected.token_ids
    torch.testing.assert_close(got.logprobs, expected.logprobs, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), **request.param)


async def test_64_greedy_tokens_equal_those_of_transformers(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    async with recording(checkpoint, max_num_seqs=4, max_batched_tokens=23) as recorder:
        request = make_request(PROMPT, max_tokens=64, ignore_eos=False, min_tokens=64)
        for _ in range(2):  # The second time most of the prompt is cached.
            assert await collect(recorder.engine, replace(request)) == expected[0, len(PROMPT) :].tolist()


async def test_a_request_is_the_same_alone_and_among_32_with_a_cold_and_a_warm_cache(checkpoint: Path) -> None:
    requests = random_requests()
    async with recording(checkpoint) as recorder:
        alone = [await recorder.run(request) for request in requests]
        warm = [await recorder.run(request) for request in requests]
        assert recorder.engine.report().cached_tokens_total > 0
    async with recording(checkpoint) as recorder:
        cold_together = await recorder.run_together(requests)
        warm_together = await recorder.run_together(requests)
    for others in (warm, cold_together, warm_together):
        for got, expected in zip(others, alone, strict=True):
            assert_same(got, expected)


async def test_a_preempted_request_goes_on_as_it_began(checkpoint: Path) -> None:
    # From less than a block to several, so that also those outgrow the pool that give up what slid out of the window.
    sampling = make_request([], max_tokens=60).sampling
    prompts = [request.prompt_ids[: 5 + i % 3 * 40] for i, request in enumerate(random_requests()[:12])]
    requests = [replace(make_request(prompt), sampling=sampling) for prompt in prompts]
    async with recording(checkpoint) as recorder:
        alone = [await recorder.run(request) for request in requests]
    cramping = {"max_model_len": 160, "num_blocks": 10, "max_num_seqs": 16, "max_batched_tokens": 37}
    async with recording(checkpoint, **cramping) as recorder:
        cramped = await recorder.run_together(requests)
        assert recorder.engine.report().num_preemptions_total > 0
    for got, expected in zip(cramped, alone, strict=True):
        assert_same(got, expected)


@pytest.mark.parametrize("budget", [1, 2, 15, 16, 17, 59])
async def test_a_request_is_the_same_under_every_budget(checkpoint: Path, budget: int) -> None:
    request = make_request(PROMPT, max_tokens=NUM_OUTPUT)
    async with recording(checkpoint) as recorder:
        expected = await recorder.run(request)
    async with recording(checkpoint, max_num_seqs=1, max_batched_tokens=budget) as recorder:
        assert_same(await recorder.run(request), expected)


async def test_this_check_sees_a_difference_of_a_thousandth(checkpoint: Path) -> None:
    request = make_request(PROMPT, max_tokens=NUM_OUTPUT)
    async with recording(checkpoint) as recorder:
        expected = await recorder.run(request)
    async with recording(checkpoint, offset=1e-3) as recorder:
        got = await recorder.run(request)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(got, expected)
