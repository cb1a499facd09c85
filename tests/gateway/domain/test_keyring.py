"""Keys in memory: no I/O while they are fresh, revocation within two seconds, service while the database is away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.database import Sessions, open_sessions
from gateway.domain.keys.keyring import FRESH_S, STALE_S, Keyring
from gateway.domain.keys.queries import keys_of
from gateway.domain.keys.secret import hash_key, is_same_hash, lookup_prefix, make_key
from gateway.domain.keys.service import bootstrap_admin_key
from gateway.http.errors import Unauthenticated, Unavailable
from tests.support.gateways import ADMIN_KEY, copy_database

PEPPER = "pepper-of-the-tests"
NOW = datetime(2026, 3, 14, tzinfo=UTC)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}") as opened:
        await bootstrap_admin_key(opened, ADMIN_KEY, pepper=PEPPER, now=NOW)
        yield opened


async def revoke_all(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        for key in await session.scalars(keys_of(None)):
            key.revoked_at = NOW


async def break_database(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        connection = await session.connection()
        await connection.exec_driver_sql("ALTER TABLE api_keys RENAME TO gone")


async def test_the_bootstrap_key_is_taken_by_a_new_database_only(sessions: Sessions) -> None:
    assert not await bootstrap_admin_key(sessions, "another-key-" + "x" * 32, pepper=PEPPER, now=NOW)
    principal = await Keyring(sessions, pepper=PEPPER).authenticate_key(ADMIN_KEY)
    assert principal.is_platform_admin


async def test_a_revoked_key_is_refused_after_two_seconds_without_being_told(sessions: Sessions) -> None:
    clock = Clock()
    keyring = Keyring(sessions, pepper=PEPPER, clock=clock)
    await keyring.authenticate_key(ADMIN_KEY)
    await revoke_all(sessions)
    await keyring.authenticate_key(ADMIN_KEY)
    clock.now += FRESH_S
    with pytest.raises(Unauthenticated):
        await keyring.authenticate_key(ADMIN_KEY)


async def test_known_keys_work_while_the_database_is_away_but_not_for_ever(sessions: Sessions) -> None:
    clock = Clock()
    keyring = Keyring(sessions, pepper=PEPPER, clock=clock)
    await keyring.authenticate_key(ADMIN_KEY)
    await break_database(sessions)
    clock.now += 60
    await keyring.authenticate_key(ADMIN_KEY)
    clock.now += STALE_S
    with pytest.raises(Unavailable):
        await keyring.authenticate_key(ADMIN_KEY)


async def test_a_wrong_secret_behind_a_right_prefix_is_refused(sessions: Sessions) -> None:
    with pytest.raises(Unauthenticated):
        await Keyring(sessions, pepper=PEPPER).authenticate_key(ADMIN_KEY[:-1] + "b")


async def test_another_pepper_knows_no_key(sessions: Sessions) -> None:
    with pytest.raises(Unauthenticated):
        await Keyring(sessions, pepper="another pepper").authenticate_key(ADMIN_KEY)


def test_keys_differ_and_hash_apart() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == len({hash_key(key, pepper=PEPPER) for key in keys}) == 100
    assert all(key.split("-")[1] == lookup_prefix(key) for key in keys)
    assert is_same_hash(hash_key("a", pepper=PEPPER), hash_key("a", pepper=PEPPER))
