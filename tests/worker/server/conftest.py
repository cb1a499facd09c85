from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.running_worker import RunningWorker, running_worker


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose context window is long enough for a long-running request."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_model_len=8192)


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    return make_tiny_adapter(tmp_path_factory.mktemp("adapter") / "a", checkpoint)


@pytest.fixture(scope="session")
def worker(checkpoint: Path, adapter: Path) -> Iterator[RunningWorker]:
    with running_worker(checkpoint, adapters={"pirate": adapter}, kv_blocks=1024) as running:
        yield running


@pytest.fixture
def http(worker: RunningWorker) -> Iterator[httpx.Client]:
    with worker.client() as client:
        yield client


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as opened:
        yield opened
