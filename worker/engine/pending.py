"""A launched step and its result."""

from dataclasses import dataclass
from typing import Any, Protocol

from worker.engine.request import TokenLogprobs
from worker.engine.sampler import Sampled
from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepResult:
    """tokens: of the chunks that yield one, in order; None where the logits were not finite or no token is allowed.
    pooled: see `worker.engine.pooling`; prompt_logprobs: see `score_prompts`."""

    tokens: list[Sampled | None]
    pooled: dict[Sequence, Any]
    prompt_logprobs: dict[Sequence, list[TokenLogprobs]]


class Pending(Protocol):
    """is_done: `wait` has nothing to wait for, so the loop calls it before launching another step."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> StepResult:
        """Call once. If it raises anything, the device is lost."""


@dataclass(frozen=True, slots=True)
class Done:
    """The pending step of a runner that computes while it launches."""

    result: StepResult
    is_done: bool = True

    def wait(self) -> StepResult:
        return self.result
