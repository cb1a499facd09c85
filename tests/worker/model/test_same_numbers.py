"""In float32 a request has the same greedy tokens, and logprobs within 1e-4, whatever happens around it."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.tiny import make_tiny_checkpoint
from tests.worker.engine.requests import collect, make_request
from tests.worker.model.architectures import ARCHITECTURES
from worker.engine.assembly import assemble
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest
from worker.engine.runner import Runner, StepOutputs
from worker.engine.sequence import Chunk
from worker.engine.settings import EngineSettings

PROMPT = [(17 * i + 5) % 380 for i in range(60)]
NUM_OUTPUT = 12


@dataclass
class RecordingRunner:
    """A runner that keeps every request's logprobs: [vocab] for each token that it was to choose.

    offset is added to the logits of one token id: what a mistake would do.
    """

    runner: Runner
    offset: float = 0.0
    logprobs: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def run(self, chunks: list[Chunk]) -> StepOutputs:
        outputs = self.runner.run(chunks)
        logits = outputs.logits.clone()
        logits[:, 0] += self.offset
        last = [chunk.sequence.request.request_id for chunk in chunks if chunk.is_last]
        for request_id, row in zip(last, logits.log_softmax(dim=-1), strict=True):
            self.logprobs[request_id].append(row)
        return replace(outputs, logits=logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


@dataclass(frozen=True)
class Recorded:
    token_ids: list[int]
    logprobs: Tensor


@dataclass
class Recorder:
    engine: Engine
    runner: RecordingRunner

    async def run(self, request: EngineRequest) -> Recorded:
        # The same prompt, told apart from earlier runs of it.
        request = replace(request, request_id=make_request([]).request_id)
        token_ids = await collect(self.engine, request)
        return Recorded(token_ids, torch.stack(self.runner.logprobs[request.request_id]))

    async def run_together(self, requests: list[EngineRequest]) -> list[Recorded]:
        return await asyncio.gather(*(self.run(request) for request in requests))


@asynccontextmanager
async def recording(checkpoint: Path, *, offset: float = 0.0, **options: Any) -> AsyncIterator[Recorder]:
    settings = EngineSettings(model_path=checkpoint, num_threads=1, dtype="float32", **options)
    parts = assemble(settings)
    runner = RecordingRunner(parts.runner, offset)
    engine = Engine(replace(parts, runner=runner), settings)  # type: ignore[arg-type]
    engine.start()
    yield Recorder(engine, runner)
    await engine.stop()


def assert_same(got: Recorded, expected: Recorded) -> None:
    assert got.token_ids == expected.token_ids
    torch.testing.assert_close(got.logprobs, expected.logprobs, atol=1e-4, rtol=0)


def random_requests() -> list[EngineRequest]:
    rng = random.Random(3)
    prompts = [[rng.randrange(384) for _ in range(rng.randrange(1, 100))] for _ in range(32)]
    return [make_request(prompt, max_tokens=NUM_OUTPUT) for prompt in prompts]


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
