from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def gateway(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    """A gateway without workers."""
    async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
        yield running
