from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.valkey import ValkeyProcess


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """Shared by tests that do not stop it; each uses tenants of its own."""
    process = ValkeyProcess(Path(tmp_path_factory.mktemp("valkey")))
    process.start()
    yield process
    process.stop()
