"""Refusals, cancellation, and steps that break: each concerns its own request only."""

import asyncio
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.engine_requests import collect, make_request
from worker.engine.blocks import BlockPool
from worker.engine.engine import Engine
from worker.engine.errors import (
    DeadlineExceeded,
    EngineStopped,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    StepFailed,
    UnknownAdapter,
)
from worker.engine.parts import load_parts
from worker.engine.pending import Pending
from worker.engine.runner import Runner
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Chunk
from worker.engine.settings import EngineSettings
from worker.lora.adapter import AdapterError

PROMPT = [5, 17, 99, 200, 42, 7]
POISON = 13


async def test_what_exceeds_the_window_is_refused_at_once(engine: Engine) -> None:
    for prompt_len, param in ((500, "max_tokens"), (512, "prompt")):
        with pytest.raises(PromptTooLong) as caught:
            engine.generate(make_request([1] * prompt_len, max_tokens=13))
        assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("prompt", [[], [384], [-1]], ids=["empty", "too large an id", "negative id"])
async def test_a_prompt_without_tokens_or_with_unknown_ones_is_refused(engine: Engine, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(make_request(prompt))
    assert caught.value.param == "prompt"


async def test_sampling_values_that_make_no_sense_are_refused_by_name(engine: Engine) -> None:
    for name, value in (("logit_bias", {384: 1.0}), ("stop_token_ids", (-1,)), ("max_tokens", -1), ("min_tokens", 99)):
        with pytest.raises(InvalidRequest) as caught:
            engine.generate(make_request(PROMPT, **{name: value}))
        assert caught.value.param == name


async def test_an_unknown_adapter_is_refused(engine: Engine) -> None:
    with pytest.raises(UnknownAdapter):
        engine.generate(make_request(PROMPT, adapter="none such"))


async def test_closing_a_stream_frees_its_blocks(engine: Engine) -> None:
    streams = [engine.generate(make_request([i] * 100, max_tokens=400)) for i in range(8)]
    for stream in streams:
        await anext(stream)
    assert engine.report().num_free_blocks < engine.report().num_blocks
    for stream in streams:
        await stream.aclose()
    await settled(engine)
    report = engine.report()
    assert (report.num_running, report.num_waiting, report.num_free_blocks) == (0, 0, report.num_blocks)
    with pytest.raises(StopAsyncIteration):
        await anext(streams[0])


async def test_cancelling_the_reader_aborts_its_request(engine: Engine) -> None:
    reader = asyncio.create_task(collect(engine, make_request(PROMPT, max_tokens=500)))
    await collect(engine, make_request(PROMPT, max_tokens=2))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await settled(engine)
    assert engine.report().num_free_blocks == engine.report().num_blocks


async def test_tokens_that_nobody_took_are_counted_as_discarded(engine: Engine) -> None:
    stream = engine.generate(make_request(PROMPT, max_tokens=400))
    taken = len((await anext(stream)).token_ids)
    await collect(engine, make_request(PROMPT, max_tokens=20))
    stream.close()
    await settled(engine)
    report = engine.report()
    assert report.discarded_tokens_total == report.completion_tokens_total - taken - 20 - 1 > 0


async def test_beyond_its_bound_the_queue_refuses_and_says_when_to_return(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, max_num_seqs=2, max_waiting=3))
    streams = [engine.generate(make_request(PROMPT, max_tokens=4)) for _ in range(5)]
    with pytest.raises(QueueFull) as caught:
        engine.generate(make_request(PROMPT))
    assert caught.value.status == 503 and 1 <= caught.value.retry_after_s <= 60
    engine.start()
    assert [len([o async for o in stream]) > 0 for stream in streams] == [True] * 5
    assert len(await collect(engine, make_request(PROMPT, max_tokens=4))) == 4
    await engine.stop()


async def test_a_passed_deadline_ends_waiting_and_running_requests(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    deadline_at = time.monotonic() + 1
    running = engine.generate(make_request(PROMPT, max_tokens=500, deadline_at=deadline_at))
    engine._turn()
    assert engine.report().num_running == 1
    waiting = engine.generate(make_request(PROMPT, deadline_at=deadline_at))
    # The engine stands still until the clock is there.
    await asyncio.sleep(deadline_at - time.monotonic())
    engine.start()
    for stream in (running, waiting):
        with pytest.raises(DeadlineExceeded):
            [output async for output in stream]
    assert engine.report().num_free_blocks == engine.report().num_blocks
    await engine.stop()


async def test_stopping_answers_everybody(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    engine.start()
    stream = engine.generate(make_request(PROMPT, max_tokens=500))
    await engine.stop()
    with pytest.raises(EngineStopped):
        [output async for output in stream]
    with pytest.raises(EngineStopped):
        engine.generate(make_request(PROMPT))


class BrokenScheduler(Scheduler):
    """Has a bug, which shows once something more is asked of the engine."""

    engine: Engine

    def schedule(self, now: float, *, max_prefill: int | None = None) -> list[Chunk]:
        while not self.engine._inbox:
            time.sleep(0.001)
        raise RuntimeError("a bug")


async def test_after_a_bug_in_the_loop_nobody_waits(checkpoint: Path, adapters: dict[str, Path]) -> None:
    settings = EngineSettings(model_path=checkpoint, num_threads=1)
    scheduler = BrokenScheduler(BlockPool(64), max_num_seqs=8, max_batched_tokens=64)
    engine = scheduler.engine = Engine(replace(load_parts(settings), scheduler=scheduler), settings)
    engine.start()
    stream = engine.generate(make_request(PROMPT))
    async with asyncio.timeout(30):
        with pytest.raises(EngineStopped):
            await asyncio.to_thread(engine.load_adapter, "late", adapters["one"])
        with pytest.raises(EngineStopped):
            [output async for output in stream]
    assert engine.is_broken
    with pytest.raises(EngineStopped):
        engine.generate(make_request(PROMPT))


async def test_adapters_come_and_go_while_the_engine_runs(engine: Engine, adapters: dict[str, Path]) -> None:
    expected = await collect(engine, make_request(PROMPT, adapter="two"))
    await asyncio.to_thread(engine.load_adapter, "new", adapters["two"])
    assert "new" in engine.report().adapters
    with pytest.raises(AdapterError, match="already loaded"):
        await asyncio.to_thread(engine.load_adapter, "new", adapters["one"])
    assert await collect(engine, make_request(PROMPT, adapter="new")) == expected

    running = engine.generate(make_request(PROMPT, adapter="new", max_tokens=16))
    first = await anext(running)
    await asyncio.to_thread(engine.unload_adapter, "new")
    with pytest.raises(UnknownAdapter):
        engine.generate(make_request(PROMPT, adapter="new"))
    with pytest.raises(UnknownAdapter):
        await asyncio.to_thread(engine.unload_adapter, "new")
    rest = [token async for output in running for token in output.token_ids]
    assert first.token_ids + rest == expected


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A checkpoint whose logits are NaN after POISON."""
    checkpoint = make_tiny_checkpoint(tmp_path, tie_word_embeddings=False)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, checkpoint / "model.safetensors")
    return checkpoint


async def test_nan_logits_fail_their_own_request_and_leave_no_trace(poisoned: Path) -> None:
    # So few blocks that the poisoned ones are used again at once.
    settings = EngineSettings(model_path=poisoned, num_threads=1, num_blocks=8, max_model_len=128)
    engine = Engine.load(settings)
    engine.start()
    expected = await collect(engine, make_request(PROMPT, max_tokens=40))
    for _ in range(4):
        good, bad = await asyncio.gather(
            collect(engine, make_request(PROMPT, max_tokens=40)),
            collect(engine, make_request([POISON] * 50, max_tokens=40)),
            return_exceptions=True,
        )
        assert good == expected
        assert isinstance(bad, StepFailed) and "not finite" in str(bad)
    await engine.stop()


async def test_a_poisoned_request_leaves_the_prefix_that_it_shares_to_the_others(poisoned: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=poisoned, num_threads=1))
    engine.start()
    prompt = [*range(20, 68), 7]
    expected = await collect(engine, make_request(prompt, max_tokens=300))
    # Another salt: the second one computes its prefix itself, and the poisoned one finds it while that runs.
    other = engine.generate(make_request(prompt, max_tokens=300, cache_salt="s"))
    first = await anext(other)
    with pytest.raises(StepFailed):
        await collect(engine, make_request([*prompt, POISON], cache_salt="s"))
    assert first.token_ids + [token async for output in other for token in output.token_ids] == expected
    await engine.stop()


@dataclass
class BreakingRunner:
    """A runner whose computation raises whenever a sequence of the step holds the poison."""

    runner: Runner
    is_lost: bool = False

    def launch(self, chunks: list[Chunk]) -> Pending:
        if any(POISON in chunk.sequence.token_ids for chunk in chunks):
            raise torch.OutOfMemoryError("no room for this")
        return self.runner.launch(chunks)

    def close(self) -> None:
        self.runner.close()


async def test_a_step_that_raises_fails_only_the_request_that_breaks_it(checkpoint: Path) -> None:
    settings = EngineSettings(model_path=checkpoint, num_threads=1)
    parts = load_parts(settings)
    engine = Engine(replace(parts, runner=BreakingRunner(parts.runner)), settings)  # type: ignore[arg-type]
    engine.start()
    never = {POISON: -100.0}
    expected = await collect(engine, make_request(PROMPT, max_tokens=400, logit_bias=never))
    bystander = engine.generate(make_request(PROMPT, max_tokens=400, logit_bias=never))
    first = await anext(bystander)
    with pytest.raises(StepFailed, match="no room for this"):
        await collect(engine, make_request([POISON]))
    assert first.token_ids + [token async for output in bystander for token in output.token_ids] == expected
    report = engine.report()
    assert (report.num_failed_steps_total, report.num_free_blocks) == (1, report.num_blocks)
    await engine.stop()


async def settled(engine: Engine) -> None:
    """Wait until the engine has taken note of what was asked before: a later request's answer proves it."""
    await collect(engine, make_request([1], max_tokens=1))


def test_a_step_without_the_memory_it_needs_fails_its_request_only(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, intermediate_size=20_000, num_layers=1, max_model_len=2048)
    command = [sys.executable, "-m", "tests.support.out_of_memory", str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    long, short = done.stdout.splitlines()
    assert "memory" in long and short == "3"


@dataclass
class HeldRunner:
    """A runner whose steps wait until they may go on."""

    runner: Runner
    is_computing: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def launch(self, chunks: list[Chunk]) -> Pending:
        self.is_computing.set()
        assert self.may_go_on.wait(20)
        return self.runner.launch(chunks)

    def close(self) -> None:
        self.runner.close()


async def test_an_id_that_is_used_again_gets_nothing_of_its_first_use(checkpoint: Path) -> None:
    settings = EngineSettings(model_path=checkpoint, num_threads=1)
    parts = load_parts(settings)
    runner = HeldRunner(parts.runner)
    engine = Engine(replace(parts, runner=runner), settings)  # type: ignore[arg-type]
    engine.start()
    request = make_request(PROMPT, max_tokens=1)
    first = engine.generate(request)
    await asyncio.to_thread(runner.is_computing.wait, 20)
    first.close()
    second = asyncio.ensure_future(collect(engine, replace(request, sampling=make_request([], max_tokens=9).sampling)))
    await asyncio.sleep(0)
    runner.may_go_on.set()
    assert len(await second) == 9
    assert len(await collect(engine, request)) == 1
    await engine.stop()


async def test_with_a_deadline_that_has_passed_nothing_is_computed_for_any_answer(engine: Engine) -> None:
    requests = [make_request(PROMPT * 30, deadline_at=time.monotonic() - 1) for _ in range(8)]
    for stream in engine.generate_all([requests]):
        with pytest.raises(DeadlineExceeded):
            await anext(stream)
    await collect(engine, make_request([1, 2]))
    assert engine.report().cached_tokens_total == 0
    assert len(await collect(engine, make_request(PROMPT * 30))) == 16
    assert engine.report().cached_tokens_total == 0
