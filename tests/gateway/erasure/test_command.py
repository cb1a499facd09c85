"""`tiergate erase`, against a real gateway."""

import asyncio
import json
from pathlib import Path

from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


async def test_a_tenant_is_erased_and_the_erasure_is_verified(tmp_path: Path, own_valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, own_valkey.url)) as gateway:
        await gateway.post("/tenants", {"name": "zyxomma", "tier": "free"})
        env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}
        erased = await asyncio.to_thread(tiergate, "erase", "zyxomma", "--yes", "--json", env=env)
        assert erased.returncode == 0, erased.stderr
        erasure = json.loads(erased.stdout)
        assert (erasure["status"], erasure["steps"][-1]["name"]) == ("finished", "proof")
        asked = ("erase", "--verify", erasure["id"], "--word")
        clean = await asyncio.to_thread(tiergate, *asked, "zyxomma", env=env)
        assert clean.returncode == 0 and "nothing is left" in clean.stdout, clean.stdout + clean.stderr
        found = await asyncio.to_thread(tiergate, *asked, "enterprise", env=env)
        assert found.returncode == 1 and "database.tiers" in found.stdout
        await gateway.post("/tenants", {"name": "other", "tier": "free"})
        told = await asyncio.to_thread(tiergate, "erase", "other", "--yes", env=env)
        assert "\n  proof       0 database, 0 audit log, 0 redis, " in told.stdout
        unknown = await asyncio.to_thread(tiergate, "erase", "zyxomma", "--yes", env=env)
        assert "there is no tenant 'zyxomma'" in unknown.stderr
