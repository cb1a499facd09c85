"""A scheduler that runs with a counter in place of a model."""

from dataclasses import dataclass, field

from worker.engine.blocks import BlockPool
from worker.engine.prefix_cache import root_digest
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Chunk, Sequence

MAX_LEN, NUM_BLOCKS, MAX_SEQS, BUDGET = 128, 14, 5, 48


def make_sequence(
    request_id: str,
    *,
    prompt_len: int = 20,
    max_tokens: int = 10,
    priority: int = 2,
    tenant: str = "",
    adapter: str | None = None,
    weight: float = 1.0,
    deadline_at: float | None = None,
    first_token: int = 0,
) -> Sequence:
    request = EngineRequest(
        request_id=request_id,
        prompt_ids=list(range(first_token, first_token + prompt_len)),
        sampling=SamplingParams(max_tokens=max_tokens),
        priority=priority,
        tenant=tenant,
        adapter=adapter,
        weight=weight,
        deadline_at=deadline_at,
    )
    root = root_digest(salt=tenant, model_version="m", adapter_digest=adapter or "")
    return Sequence(request_id, request, list(request.prompt_ids), prompt_len, root, 0.0)


@dataclass
class Simulation:
    """Runs a scheduler. Every generated token is its position, so recomputing a sequence gives the same content."""

    scheduler: Scheduler = field(
        default_factory=lambda: Scheduler(BlockPool(NUM_BLOCKS), max_num_seqs=MAX_SEQS, max_batched_tokens=BUDGET)
    )
    finished: list[str] = field(default_factory=list)
    check_each_step: bool = True
    had_decodes_wait: bool = False

    def step(self, *, max_prefill: int | None = None) -> list[Chunk]:
        chunks = self.scheduler.schedule(now=0.0, max_prefill=max_prefill)
        self._check(chunks)
        done = [chunk.sequence for chunk in chunks if chunk.is_last]
        self.scheduler.advance(self.scheduler.launch(chunks))
        for sequence in done:
            sequence.token_ids.append(len(sequence.token_ids))
            if sequence.num_output == sequence.request.sampling.max_tokens:
                self.scheduler.remove(sequence)
                self.finished.append(sequence.request.request_id)
        if self.check_each_step:
            self.scheduler.check()
        return chunks

    def run_dry(self, max_steps: int = 3000) -> int:
        """Step until nothing is left; returns the number of steps."""
        for i in range(max_steps):
            if not self.step():
                return i
        raise AssertionError("the scheduler never finishes")

    def _check(self, chunks: list[Chunk]) -> None:
        assert sum(chunk.num_tokens for chunk in chunks) <= self.scheduler.max_batched_tokens
        assert len(chunks) <= self.scheduler.max_num_seqs
        assert len({chunk.sequence.request.request_id for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            end = chunk.sequence.num_computed + chunk.num_tokens
            assert 0 < chunk.num_tokens <= chunk.sequence.num_uncomputed
            assert len(chunk.sequence.block_ids) * 16 >= end
        chosen = {chunk.sequence for chunk in chunks}
        have_decodes_to_wait = any(
            each.is_running and each.num_uncomputed == 1 and each not in chosen for each in self.scheduler.snapshot()
        )
        assert not (self.had_decodes_wait and have_decodes_to_wait)
        self.had_decodes_wait = have_decodes_to_wait
