"""An engine that records the logprobs of each request."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.engine_requests import collect, make_request
from worker.engine.engine import Engine
from worker.engine.parts import load_parts
from worker.engine.request import EngineRequest
from worker.engine.runner import Runner, StepOutputs
from worker.engine.sequence import Chunk
from worker.engine.settings import EngineSettings

PROMPT = [(17 * i + 5) % 380 for i in range(60)]
NUM_OUTPUT = 12


@dataclass
class RecordingRunner:
    """A runner that records the logprobs of every request: [vocab] for each output token.

    offset: added to the logits of one token id, to simulate a mistake.
    """

    runner: Runner
    offset: float = 0.0
    logprobs: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    launch = Runner.launch

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
        # A new id distinguishes this run from earlier runs of the same request.
        request = replace(request, request_id=make_request([]).request_id)
        token_ids = await collect(self.engine, request)
        return Recorded(token_ids, torch.stack(self.runner.logprobs[request.request_id]))

    async def run_together(self, requests: list[EngineRequest]) -> list[Recorded]:
        return await asyncio.gather(*(self.run(request) for request in requests))


@asynccontextmanager
async def recording(checkpoint: Path, *, offset: float = 0.0, **options: Any) -> AsyncIterator[Recorder]:
    settings = EngineSettings(**{"model_path": checkpoint, "num_threads": 1, "dtype": "float32"} | options)
    parts = load_parts(settings)
    runner = RecordingRunner(parts.runner, offset)
    engine = Engine(replace(parts, runner=runner), settings)  # type: ignore[arg-type]
    engine.start()
    yield Recorder(engine, runner)
    await engine.stop()


def random_requests() -> list[EngineRequest]:
    rng = random.Random(3)
    prompts = [[rng.randrange(384) for _ in range(rng.randrange(1, 100))] for _ in range(32)]
    return [make_request(prompt, max_tokens=NUM_OUTPUT) for prompt in prompts]
