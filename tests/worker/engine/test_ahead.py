"""Steps launched ahead of the tokens that they need: nothing is lost, nothing is mixed, no block is anybody else's."""

import time
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.blocks import BLOCK_SIZE, BlockPool
from worker.engine.errors import DeviceLost, StepFailed
from worker.engine.loop import StepLoop
from worker.engine.pending import StepResult
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput
from worker.engine.sampler import Sampled
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Chunk, Sequence

END, NOT_FINITE, VOCAB = 7, 11, 40


def next_token(known: list[int]) -> int:
    """What the model of these tests says after these tokens."""
    return hash((len(known), *known)) % VOCAB


@dataclass
class Launched:
    """Computed on the device, some time after its launch and in the order of the launches."""

    device: "Device"
    chunks: list[tuple[Sequence, int, int, bool, list[int], list[int]]]
    tokens: list[Sampled | None] | None = None
    is_done: bool = False

    def wait(self) -> StepResult:
        self.device.compute_up_to(self)
        assert self.tokens is not None
        return StepResult(self.tokens, {}, {})


@dataclass
class Device:
    """A runner: keys are token ids, in blocks; what is read there decides on the next token. Blocks that a launched
    step uses must be owned until it has ended."""

    pool: BlockPool
    keys: defaultdict[int, list[int | None]] = field(default_factory=lambda: defaultdict(lambda: [None] * BLOCK_SIZE))
    last: dict[Sequence, int] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)
    most_launched: int = 0
    is_lost: bool = False
    faults: list[str] = field(default_factory=list)
    fails: bool = False

    def launch(self, chunks: list[Chunk]) -> Launched:
        if self.fails and len(chunks) > 1:
            raise RuntimeError("too much at once")
        step = Launched(self, [])
        for chunk in chunks:
            sequence, start = chunk.sequence, chunk.sequence.num_computed
            known = sequence.token_ids[start : start + chunk.num_tokens]
            is_known = len(known) == chunk.num_tokens
            # What a launch raises would only have each request tried alone.
            if not is_known and (chunk.num_tokens, sequence.num_ahead, sequence.needs_host) != (1, 1, False):
                self.faults.append(f"{chunk} is launched before its tokens are known")
            row = (sequence, start, chunk.num_tokens, chunk.yields, known, list(sequence.block_ids))
            step.chunks.append(row)
        self.launched.append(step)
        self.most_launched = max(self.most_launched, len(self.launched))
        return step

    def compute_up_to(self, wanted: Launched) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        while wanted.tokens is None:
            step = self.launched.pop(0)
            step.tokens = []
            for sequence, start, count, yields, known, blocks in step.chunks:
                own = known or [self.last[sequence]]
                for place, token in zip(range(start, start + count), own, strict=True):
                    block = blocks[place // BLOCK_SIZE]
                    assert self.pool._num_owners[block] > 0, "a step writes into a block that nobody owns"
                    self.keys[block][place % BLOCK_SIZE] = token
                if yields:
                    read = [self.keys[blocks[i // BLOCK_SIZE]][i % BLOCK_SIZE] for i in range(start + count)]
                    assert None not in read
                    token = next_token([each for each in read if each is not None])
                    self.last[sequence] = token
                    step.tokens.append(None if token == NOT_FINITE else Sampled(token))


class NoAdapters:
    residency = None
    loader = None


@dataclass
class Parts:
    scheduler: Scheduler
    runner: Device
    lora: NoAdapters = field(default_factory=NoAdapters)
    model_version: str = "m"
    eos_token_ids: frozenset[int] = frozenset({END})


def _loop(num_blocks: int) -> tuple[StepLoop, Device]:
    pool = BlockPool(num_blocks)
    device = Device(pool)
    parts = Parts(Scheduler(pool, max_num_seqs=4, max_batched_tokens=40), device)
    return StepLoop(parts, lambda command: None), device  # type: ignore[arg-type]


def _request(name: str, prompt: list[int], *, max_tokens: int, priority: int, needs_host: bool) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, num_logprobs=0, prompt_logprobs=0 if needs_host else None)
    return EngineRequest(request_id=name, prompt_ids=prompt, sampling=sampling, priority=priority)


def _expected(request: EngineRequest) -> tuple[list[int], bool]:
    """The answer, and whether it fails."""
    known: list[int] = list(request.prompt_ids)
    answer: list[int] = []
    while True:
        token = next_token(known)
        if token == NOT_FINITE:
            return answer, True
        if not request.sampling.max_tokens:
            return [], False
        answer.append(token)
        known.append(token)
        if token == END or len(answer) == request.sampling.max_tokens:
            return answer, False


arrivals = st.lists(
    st.tuples(
        st.integers(0, 3),  # steps before it comes
        st.integers(1, 50),  # tokens of its prompt
        st.integers(0, 2),  # what the prompt begins with, so that some share blocks
        st.integers(0, 30),  # tokens that it may get
        st.integers(0, 3),  # class
        st.booleans(),  # whether each step needs the host
        st.none() | st.integers(1, 12),  # aborted after so many steps
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(arrivals=arrivals, num_blocks=st.integers(6, 16), fails_at=st.none() | st.integers(0, 20))
def test_answers_are_those_of_steps_one_after_the_other(
    arrivals: list[tuple[int, int, int, int, int, bool, int | None]], num_blocks: int, fails_at: int | None
) -> None:
    """Stops, failures, cancellations, preemption, shared blocks and launches that fail, in any order."""
    loop, device = _loop(num_blocks)
    got: dict[str, list[int]] = {}
    failed: set[str] = set()
    requests: dict[str, EngineRequest] = {}
    aborted: dict[int, list[str]] = defaultdict(list)
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        for name in aborted.pop(num_steps, []):
            loop.abort(name)
        device.fails = num_steps == fails_at
        loop.step()
        num_steps += 1
        for name, output in loop.outputs:
            if isinstance(output, TokenOutput):
                got[name] += output.token_ids
            else:
                assert isinstance(output, StepFailed)
                failed.add(name)
        loop.outputs.clear()

    dropped = set()
    for i, (delay, length, begin, max_tokens, priority, needs_host, abort_after) in enumerate(arrivals):
        for _ in range(delay):
            step()
        name = str(i)
        prompt = [(begin + j) % 5 for j in range(length)]
        requests[name] = _request(name, prompt, max_tokens=max_tokens, priority=priority, needs_host=needs_host)
        got[name] = []
        loop.submit([name], [requests[name]], time.monotonic())
        if abort_after is not None:
            aborted[num_steps + abort_after].append(name)
            dropped.add(name)
    while loop.has_work:
        step()
        assert num_steps < 3000
    loop.check_blocks()
    assert not device.launched and not device.faults
    assert loop._scheduler.pool.num_free == num_blocks
    for name, request in requests.items():
        answer, fails = _expected(request)
        if name in dropped:
            assert got[name] == answer[: len(got[name])]
        else:
            assert (got[name], name in failed) == (answer, fails)


def test_a_step_is_launched_before_the_last_one_is_finished() -> None:
    loop, device = _loop(16)
    prompt = next(p for p in ([i] for i in range(30)) if len(_expected(_plain(p))[0]) == 9)
    loop.submit(["a"], [_plain(prompt)], 0.0)
    num_outputs = []
    while loop.has_work:
        loop.step()
        num_outputs.append(len(loop.outputs))
    # The first step has nothing to finish, and no step is launched for a token beyond the last.
    assert num_outputs == [0, *range(1, 10)]
    assert device.most_launched == 2


def test_blocks_of_an_ended_sequence_wait_for_the_step_that_still_writes_them() -> None:
    loop, _ = _loop(16)
    pool = loop._scheduler.pool
    loop.submit(["a"], [_plain([1, 2, 3])], 0.0)
    loop.step()
    loop.step()
    loop.abort("a")
    assert loop._scheduler.num_running == 0 and pool.num_free == 15
    loop.step()
    assert pool.num_free == 16 and not loop.has_work


def test_a_device_that_is_lost_fails_what_it_computes_and_ends_the_loop() -> None:
    loop, device = _loop(16)
    for name in ("a", "b"):
        loop.submit([name], [_plain([1, 2, 3])], 0.0)
        loop.step()
    loop.outputs.clear()
    device.is_lost = True
    with pytest.raises(DeviceLost, match="illegal memory access"):
        loop.step()
    failed = {name for name, output in loop.outputs if isinstance(output, StepFailed)}
    assert failed == {"a", "b"} and device.most_launched == 2


def _plain(prompt: list[int]) -> EngineRequest:
    return _request("a", prompt, max_tokens=9, priority=2, needs_host=False)
