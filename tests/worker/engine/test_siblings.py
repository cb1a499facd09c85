"""Requests that share a prompt: submitted, ended and refused together or each by itself."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine_requests import collect, make_request
from tests.worker.engine.conftest import on_both_runners
from worker.engine.engine import Engine
from worker.engine.errors import EngineStopped, QueueFull
from worker.engine.request import EngineRequest, TokenOutput
from worker.engine.settings import EngineSettings
from worker.engine.stream import Bell, JointStream, TokenStream

PROMPT = [(7 * i) % 380 for i in range(100)]


def make_group(num: int, *, max_tokens: int = 8) -> list[EngineRequest]:
    return [make_request(PROMPT, max_tokens=max_tokens, temperature=2.0, seed=i) for i in range(num)]


async def collect_all(engine: Engine, groups: list[list[EngineRequest]]) -> list[list[int]]:
    streams = engine.generate_all(groups)
    token_ids: list[list[int]] = [[] for _ in streams]
    async for outputs in JointStream(streams):
        for i, output in outputs:
            token_ids[i] += output.token_ids
    return token_ids


@on_both_runners
async def test_a_group_answers_as_each_of_it_alone(engine: Engine) -> None:
    groups = [make_group(5), [make_request([1, 2, 3]), make_request([1, 2, 3], max_tokens=1)]]
    alone = [await collect(engine, request) for group in groups for request in group]
    assert await collect_all(engine, groups) == alone


@on_both_runners
async def test_the_others_go_on_when_the_first_is_given_up(engine: Engine) -> None:
    expected = await collect_all(engine, [make_group(4)])
    for num_given_up in (1, 2):
        streams = engine.generate_all([make_group(4)])
        for stream in streams[:num_given_up]:
            stream.close()
        got = [[token async for output in stream for token in output.token_ids] for stream in streams]
        assert got == [[]] * num_given_up + expected[num_given_up:]
    assert engine.report().num_free_blocks == engine.report().num_blocks


@on_both_runners
async def test_one_that_waits_can_be_given_up(engine: Engine) -> None:
    group = [replace(request, adapter="one") for request in make_group(3)]
    expected = await collect_all(engine, [group])
    streams = engine.generate_all([group])
    streams[1].close()
    got = [[token async for output in stream for token in output.token_ids] for stream in (streams[0], streams[2])]
    assert got == [expected[0], expected[2]]
    await asyncio.to_thread(engine.unload_adapter, "one")


async def test_a_group_is_refused_as_a_whole_and_answered_when_the_engine_stops(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, max_num_seqs=2, max_waiting=2))
    streams = engine.generate_all([[replace(request, priority=0) for request in make_group(3)]])
    with pytest.raises(QueueFull):
        engine.generate_all([[replace(request, priority=0) for request in make_group(2)]])
    assert engine.report().num_waiting == 3
    engine.start()
    await engine.stop()
    for stream in streams:
        with pytest.raises(EngineStopped):
            [output async for output in stream]
    report = engine.report()
    assert (report.num_running, report.num_waiting, report.num_free_blocks) == (0, 0, report.num_blocks)


async def test_after_its_first_output_a_request_is_never_silent_for_long() -> None:
    stream = TokenStream("s", lambda _: None, lambda _: None, Bell())
    joint = JointStream([stream], silence_s=0.01)
    output = TokenOutput(token_ids=[1])
    asyncio.get_running_loop().call_later(0.05, stream.put, output)
    assert await anext(joint) == [(0, output)], "before it others tell that it waits"
    assert await anext(joint) == [] == await anext(joint)
    stream.put(output)
    assert await anext(joint) == [(0, output)]
    joint.close()
