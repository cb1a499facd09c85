"""Gateways on both sides of a switch of the pepper, over one database and one Valkey: no client notices it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.clock import utc_now
from gateway.domain.keys.keyring import Keyring
from gateway.domain.peppers.settling import settle
from gateway.http.errors import Unauthenticated
from gateway.peppers import Peppers
from tests.support.consoles import visit
from tests.support.gateways import ADMIN_KEY, DEADLINE_S, Gateway, copy_database, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

OLD, NEW = "pepper-of-the-tests", "the-pepper-that-follows"
ANNOUNCED = {"key_pepper": OLD, "next_key_pepper": NEW}
SWITCHED = {"key_pepper": NEW, "old_key_peppers": (OLD,)}


@pytest.fixture
def site(tmp_path: Path, valkey: ValkeyProcess) -> Any:
    copy_database(tmp_path / "tiergate.db")

    @asynccontextmanager
    async def gateway(name: str, peppers: dict[str, Any]) -> AsyncIterator[Gateway]:
        url = f"sqlite+aiosqlite:///{tmp_path / 'tiergate.db'}"
        async with running_gateway(make_settings(tmp_path / name, valkey.url, database_url=url, **peppers)) as found:
            yield found

    return gateway


async def is_let_in(gateway: Gateway, key: str) -> bool:
    async with gateway.client(key) as client:
        return (await client.get("/models")).status_code == 200


async def test_whatever_one_gateway_makes_the_other_takes_on_both_sides_of_the_switch(site: Any) -> None:
    async with site("one", ANNOUNCED) as one, site("two", SWITCHED) as two:
        for here, there in ((one, two), (two, one)):
            key = await here.make_key()
            assert await is_let_in(there, key) and await is_let_in(here, key)
            async with visit(here, ADMIN_KEY) as visitor:
                assert (await visitor.http.get(f"{there.origin}/dashboard/keys")).status_code == 200
                page = await visitor.page("/dashboard/settings")
                token = page.split('name="token" value="')[1].split('"')[0]
                sent = await visitor.http.post(
                    f"{there.origin}/dashboard/settings/end-others",
                    data={"token": token},
                    headers={"origin": there.origin},
                )
                assert sent.status_code == 303, sent.text
            once = {"Idempotency-Key": uuid4().hex}
            body = {"name": f"t-{uuid4()}", "tier": "pro"}
            made = [(await each.admin.post("/tenants", json=body, headers=once)).json()["id"] for each in (here, there)]
            assert made[0] == made[1]
            hook = await here.post(
                "/webhooks", {"tenant_id": made[0], "url": "https://example.com/", "events": ["ping"]}
            )
            shown = (await there.admin.get(f"/webhooks/{hook['id']}/secret")).json()
            assert shown["secret"] == hook["secret"]


async def test_the_old_pepper_may_go_once_all_has_moved_and_is_missed_before(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with site("one", {"key_pepper": OLD}) as before:
        used, unused = await before.make_key(), await before.make_key()
        tenant = await before.post("/tenants", {"name": "acme", "tier": "pro"})
        hook = await before.post(
            "/webhooks", {"tenant_id": tenant["id"], "url": "https://example.com/", "events": ["ping"]}
        )
    async with site("two", SWITCHED) as during:
        keyring = Keyring(during.services.sessions, peppers=Peppers(NEW))
        assert await is_let_in(during, used) and (await during.admin.get("/tenants")).status_code == 200

        async def has_moved(key: str) -> bool:
            keyring.forget()
            try:
                return bool(await keyring.authenticate_key(key))
            except Unauthenticated:
                return False

        async with asyncio.timeout(DEADLINE_S):
            for key in (used, ADMIN_KEY):
                while not await has_moved(key):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await settle(during.services.sessions, during.services.settings.peppers, now=utc_now())
    with caplog.at_level(logging.ERROR, logger="gateway"):
        async with site("three", {"key_pepper": NEW}) as after:
            assert await is_let_in(after, used) and not await is_let_in(after, unused)
            assert (await after.admin.get(f"/webhooks/{hook['id']}/secret")).json()["secret"] == hook["secret"]
    assert "hang: 1 API keys" in caplog.text and "TIERGATE_OLD_KEY_PEPPERS" in caplog.text
