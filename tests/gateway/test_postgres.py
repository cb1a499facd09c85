"""The same tables and services on PostgreSQL."""

import asyncio
import os
from pathlib import Path

import pytest
from alembic import command

from migrations.run import alembic_config, migrate
from tests.support.gateways import make_settings, running_gateway
from tests.support.postgres import find_binaries, running_postgres
from tests.support.valkey import ValkeyProcess

BINARIES = find_binaries()


@pytest.mark.skipif(
    BINARIES is None and "CI" not in os.environ, reason="PostgreSQL is not installed (apt-get install postgresql)"
)
async def test_the_admin_plane_works_on_postgresql(tmp_path: Path, valkey: ValkeyProcess) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url)
        await asyncio.to_thread(command.check, alembic_config(url))
        async with running_gateway(make_settings(tmp_path, valkey.url, database_url=url)) as gateway:
            await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
            await gateway.post("/prices", {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 2})
            adapter = {"name": "pirate", "variants": {"m-7b": "p"}}
            await gateway.post("/adapters", adapter)
            assert (await gateway.admin.post("/adapters", json=adapter)).status_code == 409
            async with gateway.client(await gateway.make_key()) as client:
                cards = (await client.get("/models")).json()["data"]
            assert {card["id"] for card in cards} == {"auto", "small", "m-7b", "pirate"}
            page = (await gateway.admin.get("/audit", params={"limit": 2})).json()
            rest = (await gateway.admin.get("/audit", params={"after": page["next"]})).json()
            actions = [entry["action"] for entry in page["data"] + rest["data"]]
        await asyncio.to_thread(command.downgrade, alembic_config(url), "base")
    assert actions == [
        "key.bootstrap",
        "model.declare",
        "price.add",
        "adapter.create",
        "tenant.create",
        "key.create",
    ]
