"""A real engine with a tiny model and four adapters."""

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.kernels.hopper import on_hopper
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from worker.engine.engine import Engine
from worker.engine.gpu_runner import GpuRunner
from worker.engine.runner import Runner
from worker.engine.settings import EngineSettings

BY_INTERPRETER = (pytest.mark.long, pytest.mark.timeout(1800))
ADAPTERS = ("one", "two", "three", "four")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Heads of size 64, as the GPU kernels require.
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), hidden_size=128, num_heads=2, num_kv_heads=1)


@pytest.fixture(scope="session")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    modules = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {
        name: make_tiny_adapter(root / name, checkpoint, seed=i, rank=2 + 3 * i, target_modules=modules[: 7 - i])
        for i, name in enumerate(ADAPTERS)
    }


on_both_runners = pytest.mark.parametrize("runs_on", ["cpu", pytest.param("gpu", marks=BY_INTERPRETER)], indirect=True)
"""Runs tests of an engine's answers on the CPU, and with the GPU's runner on interpreted kernels."""


@pytest.fixture
def runs_on(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where all engines of the test compute: `cpu` or `gpu`."""
    place = getattr(request, "param", "cpu")
    with on_hopper() if place == "gpu" else nullcontext():
        yield place


@pytest.fixture
async def engine(runs_on: str, checkpoint: Path, adapters: dict[str, Path]) -> AsyncIterator[Engine]:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, adapters=adapters, is_eager=True))
    assert isinstance(engine._parts.runner, GpuRunner if runs_on == "gpu" else Runner)
    engine.start()
    yield engine
    await engine.stop()
