"""A worker whose device is lost, or briefly short of memory, when a prompt contains a certain token.

python -m tests.support.losing_worker --model ... (as `tiergate worker`)
"""

import sys
from dataclasses import dataclass, field, replace

import torch

from worker.engine.engine import Engine
from worker.engine.parts import load_parts
from worker.engine.pending import Pending, StepResult
from worker.engine.runner import Runner
from worker.engine.sequence import Chunk
from worker.engine.settings import EngineSettings
from worker.main import run
from worker.settings import load_settings

LOSES_AT_LAUNCH, LOSES_LATER, LACKS_MEMORY = 13, 14, 15


@dataclass
class LosingRunner:
    """Launches ahead, like a GPU: the result of a step is available once it is waited for."""

    runner: Runner
    is_lost: bool = False

    def launch(self, chunks: list[Chunk]) -> Pending:
        held = {token for chunk in chunks for token in chunk.sequence.token_ids[: chunk.sequence.num_prompt]}
        if self.is_lost or LOSES_AT_LAUNCH in held:
            self.is_lost = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if LACKS_MEMORY in held:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return _Later(self, self.runner.launch(chunks), fails=LOSES_LATER in held)

    def take_memory(self) -> None:
        self.runner.take_memory()

    def close(self) -> None:
        self.runner.close()


@dataclass
class _Later:
    owner: LosingRunner
    pending: Pending
    fails: bool
    is_done: bool = field(default=True)

    def wait(self) -> StepResult:
        if self.fails:
            self.owner.is_lost = True
            raise RuntimeError("CUDA error: misaligned address")
        return self.pending.wait()


def load_losing(settings: EngineSettings) -> Engine:
    parts = load_parts(settings)
    return Engine(replace(parts, runner=LosingRunner(parts.runner)), settings)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(run(load_settings(), load_engine=load_losing))
