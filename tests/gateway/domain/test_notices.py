"""What one gateway's administrator changes, all others hear through Redis at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.database import Sessions, open_sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.service import make_admin_key
from gateway.domain.notices import CHANNEL, Notices
from gateway.domain.tiers.service import change_tier
from gateway.http.errors import Unauthenticated
from gateway.main import end_tasks
from gateway.peppers import Peppers
from gateway.redis_client import connect_redis
from tests.gateway.domain.test_keyring import NOW, PEPPER, Clock, revoke_all
from tests.support.gateways import (
    DEADLINE_S,
    copy_database,
    eventually,
    make_settings,
    running_gateway,
)
from tests.support.valkey import ValkeyProcess


class Listener:
    """A gateway's keyring and catalog without loops of their own, at a time that stands still."""

    def __init__(self, sessions: Sessions, url: str, name: str) -> None:
        self.sessions = sessions
        self.redis = connect_redis(url, deadline_s=5)
        self.keyring = Keyring(sessions, peppers=Peppers(PEPPER), clock=Clock())
        self.catalog = CatalogCache(sessions)
        self.num_redrawn = 0
        self.notices = Notices(self.redis, self.keyring, self.catalog, sender=name, redraw=self.redraw)

    def redraw(self) -> None:
        self.num_redrawn += 1


@asynccontextmanager
async def listening(sessions: Sessions, valkey: ValkeyProcess, name: str) -> AsyncIterator[Listener]:
    listener = Listener(sessions, valkey.url, name)
    task = asyncio.create_task(listener.notices.follow_forever())
    try:
        yield listener
        assert not task.done()
    finally:
        await end_tasks([task])
        await listener.redis.aclose()


async def until_heard(listener: Listener, num: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await listener.redis.pubsub_numsub(CHANNEL))[0][1] != num:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}") as opened:
        yield opened


async def test_a_key_that_is_ended_elsewhere_is_read_again_and_all_others_are_not(
    sessions: Sessions, tmp_path: Path
) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        ended, other = [(await make_admin_key(sessions, name=n, pepper=PEPPER, now=NOW))[1] for n in ("a", "b")]
        async with listening(sessions, valkey, "one") as one, listening(sessions, valkey, "two") as two:
            await until_heard(one, 2)
            for key in (ended, other):
                await two.keyring.authenticate(f"Bearer {key}")
            await revoke_all(sessions)
            await one.notices.tell(ended=[ended.split("-")[1]])
            await eventually(lambda: two.keyring.known(f"Bearer {ended}") is None)
            with pytest.raises(Unauthenticated):
                await two.keyring.authenticate(f"Bearer {ended}")
            assert two.keyring.known(f"Bearer {other}") is not None
            # What is no notice of ours is passed over.
            await one.redis.publish(CHANNEL, b"\xff")
            await one.notices.tell()
            await eventually(lambda: two.keyring.known(f"Bearer {other}") is None)
            await eventually(lambda: two.num_redrawn)
            assert one.num_redrawn == 0
    finally:
        valkey.stop()


async def test_what_was_told_while_redis_was_away_is_read_when_it_is_back(sessions: Sessions, tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        async with listening(sessions, valkey, "one") as one:
            await until_heard(one, 1)
            await one.catalog.reload()
            valkey.stop()
            await eventually(lambda: one.notices.is_deaf)
            await change_tier(sessions, None, "pro", {"concurrency": 77}, now=NOW)
            await one.notices.tell()
            assert one.catalog.current.tiers["pro"].concurrency != 77
            valkey.start()
            await eventually(lambda: one.catalog.current.tiers["pro"].concurrency == 77)
    finally:
        valkey.stop()


async def test_two_gateways_refuse_what_either_revokes(tmp_path: Path, valkey: ValkeyProcess) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    one_settings = make_settings(tmp_path / "one", valkey.url, database_url=url)
    two_settings = make_settings(tmp_path / "two", valkey.url, database_url=url)
    async with running_gateway(one_settings) as one, running_gateway(two_settings) as two:
        tenant = await one.post("/tenants", {"name": "acme", "tier": "pro"})
        made = await one.post("/keys", {"tenant_id": tenant["id"], "name": "k"})
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {made['key']}"}, timeout=DEADLINE_S) as client:
            for gateway in (one, two):
                assert (await client.get(f"{gateway.base_url}/models")).status_code == 200
            limits = {"limits": {"concurrency": 3}}
            await one.admin.patch(f"/tenants/{tenant['id']}", json=limits)
            tenants = two.services.catalog
            await eventually(lambda: tenants.current.tenant_tier(tenant["id"], "pro").concurrency == 3)
            await one.admin.delete(f"/keys/{made['id']}")
            assert (await client.get(f"{one.base_url}/models")).status_code == 401
            keyring = two.services.keyring
            await eventually(lambda: keyring.known(f"Bearer {made['key']}") is None)
            assert (await client.get(f"{two.base_url}/models")).status_code == 401
