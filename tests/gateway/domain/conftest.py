"""A new database on SQLite and on PostgreSQL, and its administrator."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.database import Sessions, open_sessions
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.service import make_admin_key
from gateway.domain.principal import Principal
from gateway.peppers import Peppers
from migrations.run import migrate
from tests.support.gateways import copy_database
from tests.support.postgres import find_binaries, running_postgres

PEPPER = "pepper-of-the-tests"
NOW = datetime(2026, 3, 14, tzinfo=UTC)
BINARIES = find_binaries()


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if BINARIES is None and "CI" not in os.environ:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    assert BINARIES is not None, "PostgreSQL is not installed"
    with running_postgres(BINARIES) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sessions]:
    if request.param == "sqlite":
        await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
        url = f"sqlite:///{tmp_path / 'db.sqlite'}"
    else:
        url = request.getfixturevalue("postgres_url")
        await asyncio.to_thread(migrate, url)
    async with open_sessions(url) as opened:
        yield opened


@pytest.fixture
async def admin(sessions: Sessions) -> Principal:
    _, secret = await make_admin_key(sessions, name="test", pepper=PEPPER, now=NOW)
    return await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(secret)
