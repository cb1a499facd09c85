"""Best-effort work is refused before the queue is full; classes 0 and 1 wait on."""

from pathlib import Path

import pytest

from tests.support.engine_requests import collect, make_request
from worker.engine.engine import Engine
from worker.engine.errors import BestEffortShed, QueueFull
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.settings import EngineSettings
from worker.engine.shedding import max_queued


def request_of(priority: int, name: str, *, prompt_len: int = 4, max_tokens: int = 2) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    prompt_ids = [20 + priority] * prompt_len
    return EngineRequest(request_id=name, prompt_ids=prompt_ids, priority=priority, sampling=sampling)


@pytest.mark.parametrize(("priority", "expected", "when_tight"), [(0, 10, 10), (1, 10, 10), (2, 8, 0), (3, 8, 0)])
def test_four_fifths_of_the_queue_are_for_best_effort_and_nothing_when_blocks_run_out(
    priority: int, expected: int, when_tight: int
) -> None:
    assert max_queued(priority, 10, is_kv_tight=False) == expected
    assert max_queued(priority, 10, is_kv_tight=True) == when_tight


async def test_above_four_fifths_of_the_queue_only_higher_classes_are_taken(checkpoint: Path) -> None:
    settings = EngineSettings(
        model_path=checkpoint, num_threads=1, max_num_seqs=1, max_waiting=10, sheds_best_effort=True
    )
    engine = Engine.load(settings)
    streams = [engine.generate(request_of(2, f"free {i}")) for i in range(9)]
    for priority in (2, 3):
        with pytest.raises(BestEffortShed) as caught:
            engine.generate(request_of(priority, "one more"))
        assert caught.value.status == 503 and caught.value.retry_after_s >= 1
    streams += [engine.generate(request_of(priority, f"paid {priority}")) for priority in (0, 1)]
    with pytest.raises(QueueFull, match="queue is full"):
        engine.generate(request_of(0, "too many"))
    engine.start()
    for stream in streams:
        assert [output.finish_reason async for output in stream][-1] == "length"
    await engine.stop()


async def test_with_blocks_running_out_only_higher_classes_wait(checkpoint: Path) -> None:
    settings = EngineSettings(model_path=checkpoint, num_threads=1, num_blocks=41, sheds_best_effort=True)
    engine = Engine.load(settings)
    # 39 of 41 blocks are taken, and the first request may need 12 more.
    streams = [
        engine.generate(request_of(1, "grows", prompt_len=320, max_tokens=190)),
        engine.generate(request_of(0, "other", prompt_len=300, max_tokens=4)),
    ]
    engine._turn()
    streams.append(engine.generate(request_of(1, "waits", prompt_len=100)))
    engine._turn()
    with pytest.raises(BestEffortShed):
        engine.generate(request_of(2, "free"))
    streams.append(engine.generate(request_of(1, "waits too")))
    engine.start()
    for stream in streams:
        assert [output.finish_reason async for output in stream][-1] == "length"
    await engine.stop()


async def test_without_classes_nothing_is_shed(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, max_num_seqs=1, max_waiting=5))
    streams = [engine.generate(request_of(3, str(i))) for i in range(6)]
    with pytest.raises(QueueFull, match="queue is full"):
        engine.generate(request_of(3, "too many"))
    for stream in streams:
        stream.close()
    engine.start()
    assert len(await collect(engine, make_request([1], max_tokens=1))) == 1
    await engine.stop()
