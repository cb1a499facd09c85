"""`tiergate tenant|user|key|tier`, against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
        yield running
    valkey.stop()


async def run(gateway: Gateway, *arguments: str) -> Any:
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}
    ended = await asyncio.to_thread(tiergate, *arguments, "--json", env=env)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


async def test_tiers_tenants_and_keys_are_made_and_changed(gateway: Gateway) -> None:
    tier = await run(gateway, "tier", "create", "trial", "concurrency=1", "--copy-of", "free")
    assert (tier["concurrency"], tier["context_tokens"]) == (1, 32_768)
    await run(gateway, "tenant", "create", "acme", "--tier", "trial")
    assert (await run(gateway, "tier", "retire", "trial"))["retired_at"] is not None
    assert (await run(gateway, "tier", "retire", "trial", "--restore"))["retired_at"] is None
    limits = ("--limit", "concurrency=3", "--limit", "tokens_per_day=9", "--user-limit", "concurrency=2")
    tenant = await run(gateway, "tenant", "change", "acme", *limits)
    assert (tenant["limits"], tenant["user_limits"]) == ({"concurrency": 3, "tokens_per_day": 9}, {"concurrency": 2})
    tenant = await run(gateway, "tenant", "change", "acme", "--limit", "concurrency=null")
    assert tenant["limits"] == {"tokens_per_day": 9}
    terms = ("--model", "small", "--network", "127.0.0.0/8", "--expires-at", "2999-01-01T00:00:00Z", "--limit")
    made = await run(gateway, "key", "create", "acme", "--scope", "usage", *terms, "concurrency=1")
    assert (made["scopes"], made["allowed_models"], made["limits"]) == (["usage"], ["small"], {"concurrency": 1})
    free = ("--model", "any", "--network", "any", "--expires-at", "never", "--name", "renamed")
    changed = await run(gateway, "key", "change", made["id"], *free)
    restrictions = [changed[name] for name in ("allowed_models", "allowed_networks", "expires_at")]
    assert (restrictions, changed["name"], changed["limits"]) == ([None] * 3, "renamed", {"concurrency": 1})
    rotated = await run(gateway, "key", "rotate", made["id"], "--overlap-s", "60")
    assert rotated["id"] == made["id"] and rotated["key"] != made["key"]


async def test_end_users_get_limits_by_name_and_lose_them(gateway: Gateway) -> None:
    for tenant in ("acme", "bolt"):
        await run(gateway, "tenant", "create", tenant)
        made = await run(gateway, "user", "limits", tenant, "alice", "concurrency=2", "tokens_per_day=9")
        assert made["limits"] == {"concurrency": 2, "tokens_per_day": 9}
    changed = await run(gateway, "user", "limits", "acme", "alice", "concurrency=null")
    assert changed["limits"] == {"tokens_per_day": 9}
    assert [row["id"] for row in await run(gateway, "user", "list", "acme")] == [changed["id"]]
    assert len(await run(gateway, "user", "list")) == 2
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}
    gone = await asyncio.to_thread(tiergate, "user", "delete", "acme", "alice", env=env)
    assert gone.returncode == 0, gone
    assert [row["user_id"] for row in await run(gateway, "user", "list")] == ["alice"]
    again = await asyncio.to_thread(tiergate, "user", "delete", "acme", "alice", env=env)
    assert again.returncode != 0 and "has no limits of its own" in again.stderr
