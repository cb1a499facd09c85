from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.valkey import ValkeyProcess


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """Not shared with other tests: it is stopped, or what dies in it must not be found by them."""
    process = ValkeyProcess(tmp_path)
    process.start()
    yield process
    process.stop()
