"""More adapters than slots, loads that take long or fail, and versions that change, under traffic."""

import asyncio
import random
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.engine_requests import collect, make_request
from tests.support.peft_adapters import MODULES, count_equal, save_by_peft
from worker.engine.engine import Engine
from worker.engine.errors import AdapterUnavailable, DeadlineExceeded, EngineStopped
from worker.engine.parts import load_parts
from worker.engine.settings import EngineSettings
from worker.lora.adapter import Adapter, AdapterError, read_adapter

# peft 0.21 still reads a property that transformers 5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
PROMPT = [5, 17, 99, 200, 42, 7]


@asynccontextmanager
async def running_engine(checkpoint: Path, read: Any = read_adapter, **settings: Any) -> AsyncIterator[Engine]:
    options = EngineSettings(model_path=checkpoint, num_threads=1, dtype="float32", **settings)
    engine = Engine(load_parts(options, read=read), options)
    engine.start()
    yield engine
    await engine.stop()


@pytest.mark.long
async def test_64_adapters_over_8_slots_answer_200_requests_as_peft_does(checkpoint: Path, tmp_path: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(checkpoint)
    folders = {f"a{i}": save_by_peft(base, tmp_path, i) for i in range(64)}
    rng = random.Random(1)
    names = [*folders] + [rng.choice([*folders]) for _ in range(116)] + [None] * 20
    rng.shuffle(names)
    prompts = [[rng.randrange(380) for _ in range(rng.randint(2, 30))] for _ in names]
    # So little memory beside the slots that most adapters come from their files again.
    settings = {"num_adapter_slots": 8, "adapter_host_bytes": 500_000, "max_waiting": 256}
    async with running_engine(checkpoint, adapters=folders, **settings) as engine:
        assert len(engine.report().adapters) == 64 and len(engine.report().resident_adapters) == 8
        requests = [make_request(p, max_tokens=5, adapter=name) for p, name in zip(prompts, names, strict=True)]
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*(collect(engine, request) for request in requests))
        assert len(engine.report().resident_adapters) == 8
        engine._parts.lora.residency.check()
    assert count_equal(checkpoint, folders, list(zip(names, prompts, answers, strict=True)), num_tokens=5) >= 190


class HeldReads:
    """Reads adapters, but those named only when `release` is set."""

    def __init__(self, *held: str) -> None:
        self.held = held
        self.release = threading.Event()

    def __call__(self, folder: Path, **options: Any) -> Adapter:
        if folder.name in self.held:
            self.release.wait(60)
        return read_adapter(folder, **options)


async def test_who_waits_for_an_adapter_blocks_nobody(checkpoint: Path, adapters: dict[str, Path]) -> None:
    reads = HeldReads()
    # Room for the two that are read last and no memory for more: the first has to be read again.
    settings = {"num_adapter_slots": 2, "adapter_host_bytes": 1}
    async with running_engine(checkpoint, reads, adapters=adapters, **settings) as engine:
        expected = await collect(engine, make_request(PROMPT, adapter="four"))
        await collect(engine, make_request(PROMPT, adapter="one"))
        await collect(engine, make_request(PROMPT, adapter="two"))
        reads.held = ("four",)
        waiting = [engine.generate(make_request(PROMPT, adapter="four")) for _ in range(3)]
        doomed = engine.generate(make_request(PROMPT, adapter="four", deadline_at=time.monotonic() + 0.2))
        for adapter in (None, "two", None, "two"):
            assert len(await collect(engine, make_request(PROMPT, adapter=adapter))) == 16
        assert engine.report().num_waiting >= 3
        assert engine.adapters_in_use()[1] == {"four"}
        with pytest.raises(DeadlineExceeded):
            await anext(doomed)
        await waiting.pop().aclose()
        reads.release.set()
        for stream in waiting:
            assert [token async for output in stream for token in output.token_ids] == expected
        assert "four" in engine.report().resident_adapters


async def test_a_load_that_fails_fails_its_own_requests_with_the_reason(
    checkpoint: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folders = {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in adapters.items()}
    settings = {"num_adapter_slots": 1, "adapter_host_bytes": 1}
    async with running_engine(checkpoint, adapters=folders, **settings) as engine:
        expected = await collect(engine, make_request(PROMPT, adapter="four"))
        (folders["two"] / "adapter_model.safetensors").unlink()
        make_tiny_adapter(folders["three"], checkpoint, seed=99)
        for name, reason in (("two", "the file is missing"), ("three", "have changed since it was loaded")):
            with pytest.raises(AdapterUnavailable, match=reason) as caught:
                await collect(engine, make_request(PROMPT, adapter=name))
            assert caught.value.status == 503
        assert await collect(engine, make_request(PROMPT, adapter="four")) == expected
        engine._parts.lora.residency.check()


async def test_a_broken_adapter_disturbs_no_other(engine: Engine, adapters: dict[str, Path], tmp_path: Path) -> None:
    before = engine.report().adapters, engine.report().resident_adapters
    expected = await collect(engine, make_request(PROMPT, adapter="two"))
    (tmp_path / "adapter_config.json").write_text("{}")
    for is_replacing in (False, True):
        with pytest.raises(AdapterError):
            await asyncio.to_thread(engine.load_adapter, "two" if is_replacing else "new", tmp_path)
    assert (engine.report().adapters, engine.report().resident_adapters) == before
    assert await collect(engine, make_request(PROMPT, adapter="two")) == expected


async def test_versions_change_under_traffic_and_no_answer_mixes_them(
    checkpoint: Path, adapters: dict[str, Path]
) -> None:
    settings = {"num_adapter_slots": 3, "adapters": {"x": adapters["one"]}}
    async with running_engine(checkpoint, **settings) as engine:
        expected = []
        for name in ("one", "two"):
            await asyncio.to_thread(engine.load_adapter, "x", adapters[name], is_replacing=True)
            expected.append(await collect(engine, make_request(PROMPT, adapter="x", max_tokens=40)))
        assert expected[0] != expected[1]
        is_over = asyncio.Event()
        answers: list[list[int]] = []

        async def ask() -> None:
            while not is_over.is_set():
                answers.append(await collect(engine, make_request(PROMPT, adapter="x", max_tokens=40)))

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(ask())
            for i in range(30):
                folder = adapters[("one", "two")[i % 2]]
                await asyncio.to_thread(engine.load_adapter, "x", folder, is_replacing=True)
                if i % 10 > 7:
                    # Mostly a version goes before anybody is done with it; these last until they have answered.
                    while expected[i % 2] not in answers:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
            is_over.set()
        assert all(answer in expected for answer in answers)
        # The last version came while all still answered with the one before; who asks for it brings it in.
        assert await collect(engine, make_request(PROMPT, adapter="x", max_tokens=40)) == expected[1]
        assert engine.report().adapters == engine.report().resident_adapters == ("x",)
        await asyncio.to_thread(engine.unload_adapter, "x")
        residency = engine._parts.lora.residency
        assert residency.residents == () and residency.has_free_room(residency.num_pages)
        residency.check()


async def test_16_large_adapters_come_in_mid_traffic_and_streams_go_on(checkpoint: Path, tmp_path: Path) -> None:
    folders = [
        make_tiny_adapter(tmp_path / str(i), checkpoint, rank=64, seed=i, target_modules=tuple(MODULES))
        for i in range(16)
    ]
    async with running_engine(checkpoint, num_adapter_slots=20) as engine:
        expected = [await collect(engine, make_request([i, *PROMPT], max_tokens=200)) for i in range(8)]
        streams = [asyncio.create_task(collect(engine, make_request([i, *PROMPT], max_tokens=200))) for i in range(8)]
        for i, folder in enumerate(folders):
            await asyncio.to_thread(engine.load_adapter, f"large{i}", folder)
        assert await asyncio.gather(*streams) == expected
        names = [f"large{i}" for i in range(16)]
        await asyncio.gather(*(collect(engine, make_request(PROMPT, adapter=name)) for name in names))
        assert set(engine.report().resident_adapters) == set(names)


async def test_what_is_unloaded_leaves_host_memory_when_its_last_request_is_over(
    checkpoint: Path, adapters: dict[str, Path]
) -> None:
    async with running_engine(checkpoint, adapters=adapters) as engine:
        loader = engine._parts.lora.loader
        before = loader.num_host_bytes
        stream = asyncio.create_task(collect(engine, make_request(PROMPT, adapter="one", max_tokens=100)))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.unload_adapter, "one")
        await stream
        assert 0 < loader.num_host_bytes < before
        await asyncio.to_thread(engine.load_adapter, "one", adapters["one"])
        assert loader.num_host_bytes == before


async def test_stopping_answers_those_who_wait_for_an_adapter(checkpoint: Path, adapters: dict[str, Path]) -> None:
    reads = HeldReads()
    async with running_engine(
        checkpoint, reads, num_adapter_slots=1, adapter_host_bytes=1, adapters=adapters
    ) as engine:
        await collect(engine, make_request(PROMPT, adapter="two"))
        reads.held = ("one",)
        stream = engine.generate(make_request(PROMPT, adapter="one"))
        stopping = asyncio.create_task(engine.stop())
        with pytest.raises(EngineStopped):
            await anext(stream)
        reads.release.set()
        await stopping


async def test_an_adapter_of_more_ranks_than_all_pages_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = make_tiny_adapter(tmp_path / "wide", checkpoint, rank=65)
    async with running_engine(checkpoint, num_adapter_slots=1) as engine:
        with pytest.raises(AdapterError, match="rank 65 needs 5 pages of 16, this worker has 4"):
            engine.load_adapter("wide", folder)
        assert engine.report().adapters == ()


def test_a_thousand_adapters_are_registered_and_a_slot_serves_them(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", hidden_size=32, intermediate_size=32, num_layers=1)
    folder = make_tiny_adapter(tmp_path / "one", checkpoint, rank=1)
    settings = EngineSettings(
        model_path=checkpoint, num_threads=1, num_adapter_slots=20, adapters={f"a{i}": folder for i in range(1000)}
    )
    report = Engine.load(settings).report()
    assert (len(report.adapters), len(report.resident_adapters)) == (1000, 20)
