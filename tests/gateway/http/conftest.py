from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

TRUSTED_PROXY = "127.0.0.1"
CORS_ORIGIN = "https://app.example"


@pytest.fixture
async def plain(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    """A gateway without workers, which are not needed for requests that are refused at the door."""
    async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
        yield running


@pytest.fixture
async def proxied(tmp_path: Path, valkey: ValkeyProcess) -> AsyncIterator[Gateway]:
    """A gateway that trusts this machine's proxy, and allows pages of another site by CORS."""
    settings = make_settings(tmp_path / "proxied", valkey.url, trusted_proxies=TRUSTED_PROXY, cors_origins=CORS_ORIGIN)
    async with running_gateway(settings) as running:
        yield running
