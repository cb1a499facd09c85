from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.platform import Platform, start_platform, stop


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One platform for all tests that only use it; tests that break it start their own."""
    # The tests' tools are on this machine.
    env = {"TIERGATE_TOOL_HOSTS": "127.0.0.1", "TIERGATE_OUTBOUND_PRIVATE_NETWORKS": "127.0.0.0/8"}
    running = start_platform(Path(tmp_path_factory.mktemp("platform")) / "data", env=env)
    yield running
    assert stop(running.process) == 0


@pytest.fixture
def client(platform: Platform) -> Iterator[openai.OpenAI]:
    """A client with the enterprise tenant's key."""
    with openai.OpenAI(base_url=platform.base_url, api_key=platform.enterprise_key, max_retries=0) as opened:
        yield opened
