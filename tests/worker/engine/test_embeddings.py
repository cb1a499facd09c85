"""Embeddings come out of the same step loop: chunked, preempted and batched with answers, and are what transformers
computes."""

import asyncio
import random
from array import array
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.engine_requests import collect, make_request
from tests.worker.engine.conftest import on_both_runners
from worker.engine.engine import Engine
from worker.engine.errors import PromptTooLong, StepFailed
from worker.engine.request import EngineRequest, Pooling, TokenOutput
from worker.engine.settings import EngineSettings

PROMPTS = [[random.Random(i).randrange(384) for _ in range(1 + 37 * i)] for i in range(10)]


def embedding_request(prompt_ids: list[int], pooling: Pooling) -> EngineRequest:
    return EngineRequest(request_id=make_request([]).request_id, prompt_ids=prompt_ids, pooling=pooling)


async def only_output(engine: Engine, request: EngineRequest) -> TokenOutput:
    (output,) = [output async for output in engine.generate(request)]
    return output


async def embed(engine: Engine, prompt_ids: list[int], pooling: Pooling) -> torch.Tensor:
    output = await only_output(engine, embedding_request(prompt_ids, pooling))
    assert output.embedding is not None
    assert (output.token_ids, output.finish_reason) == ([], "stop")
    return torch.tensor(array("f", output.embedding))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[Pooling, list[torch.Tensor]]:
    model = AutoModel.from_pretrained(checkpoint)
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]
    pooled = {"last": [each[-1] for each in states], "mean": [each.mean(dim=0) for each in states]}
    return {kind: [vector / vector.norm() for vector in vectors] for kind, vectors in pooled.items()}  # type: ignore[misc]


@on_both_runners
@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_embeddings_equal_those_of_transformers(
    engine: Engine, expected: dict[Pooling, list[torch.Tensor]], pooling: Pooling
) -> None:
    # Twice: the second time the prefixes are cached.
    for _ in range(2):
        for prompt, vector in zip(PROMPTS, expected[pooling], strict=True):
            torch.testing.assert_close(await embed(engine, prompt, pooling), vector, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_in_small_steps_among_answers_and_preempted_they_are_the_same(
    checkpoint: Path, expected: dict[Pooling, list[torch.Tensor]], pooling: Pooling
) -> None:
    settings = EngineSettings(
        model_path=checkpoint, num_threads=1, num_blocks=34, max_num_seqs=12, max_batched_tokens=23
    )
    engine = Engine.load(settings)
    engine.start()
    answers = [collect(engine, make_request([5, 6, i], max_tokens=120)) for i in range(8)]
    vectors = [embed(engine, prompt, pooling) for prompt in PROMPTS]
    *_, embedded = await asyncio.gather(*answers, asyncio.gather(*vectors))
    for got, vector in zip(embedded, expected[pooling], strict=True):
        torch.testing.assert_close(got, vector, atol=1e-5, rtol=0)
    report = engine.report()
    assert report.num_preemptions_total > 0
    assert report.num_free_blocks == report.num_blocks
    await engine.stop()


async def test_a_text_may_fill_the_window_and_no_more(engine: Engine) -> None:
    assert (await embed(engine, [7] * 512, "last")).shape == (128,)
    with pytest.raises(PromptTooLong):
        engine.generate(embedding_request([7] * 513, "last"))


@on_both_runners
async def test_its_tokens_count_as_prompt_tokens(engine: Engine) -> None:
    before = engine.report()
    output = await only_output(engine, embedding_request([3] * 40, "last"))
    again = await only_output(engine, embedding_request([3] * 40, "last"))
    after = engine.report()
    assert (output.cached_tokens, again.cached_tokens) == (0, 32)
    assert after.prompt_tokens_total - before.prompt_tokens_total == 80
    assert after.completion_tokens_total == before.completion_tokens_total


async def test_what_is_not_finite_fails_alone_and_is_counted(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, tie_word_embeddings=False)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.embed_tokens.weight"][13] = float("nan")
    save_file(weights, checkpoint / "model.safetensors")
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, num_blocks=32))
    engine.start()
    good = await embed(engine, [1, 2, 3], "mean")
    with pytest.raises(StepFailed, match="not finite"):
        await embed(engine, [13] * 500, "mean")
    assert torch.equal(await embed(engine, [1, 2, 3], "mean"), good)
    assert engine.report().num_nan_rows_total == 1
    await engine.stop()
