"""Tokens from a tiny real model through the whole engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.tiny import make_tiny_checkpoint
from worker.engine.engine import Engine
from worker.engine.errors import InvalidRequest, PromptTooLong
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.settings import EngineSettings


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[Engine]:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    engine.start()
    yield engine
    await engine.stop()


def make_request(request_id: str, prompt_ids: list[int], *, max_tokens: int) -> EngineRequest:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt_ids=prompt_ids, sampling=sampling)


async def collect(engine: Engine, request: EngineRequest) -> list[int]:
    return [token async for output in engine.generate(request) for token in output.token_ids]


async def test_64_greedy_tokens_equal_those_of_transformers(engine: Engine, checkpoint: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    prompt = [5, 17, 99, 200, 42, 7]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    assert await collect(engine, make_request("a", prompt, max_tokens=64)) == expected[0, len(prompt) :].tolist()


async def test_32_at_once_return_what_each_returns_alone(engine: Engine) -> None:
    prompts = [[(7 * i + j) % 380 for j in range(3 + 5 * i)] for i in range(32)]
    alone = [await collect(engine, make_request(f"a{i}", p, max_tokens=24)) for i, p in enumerate(prompts)]
    together = await asyncio.gather(
        *(collect(engine, make_request(f"b{i}", p, max_tokens=24)) for i, p in enumerate(prompts))
    )
    assert together == alone


async def test_what_exceeds_the_window_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(PromptTooLong) as caught:
        engine.generate(make_request("long", [1] * 500, max_tokens=13))
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("prompt", [[], [384], [-1]])
async def test_a_prompt_without_tokens_or_with_unknown_ones_is_refused(engine: Engine, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        engine.generate(make_request("bad", prompt, max_tokens=1))
