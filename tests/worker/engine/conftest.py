"""A tiny model with four adapters behind a real engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from worker.engine.engine import Engine
from worker.engine.settings import EngineSettings

ADAPTERS = ("one", "two", "three", "four")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    modules = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {
        name: make_tiny_adapter(root / name, checkpoint, seed=i, rank=2 + 3 * i, target_modules=modules[: 7 - i])
        for i, name in enumerate(ADAPTERS)
    }


@pytest.fixture
async def engine(checkpoint: Path, adapters: dict[str, Path]) -> AsyncIterator[Engine]:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1, adapters=adapters))
    engine.start()
    yield engine
    await engine.stop()
