"""`tiergate login`: keys kept by platform, and sent to no other."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import refusal, tiergate
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    async with running_gateway(make_settings(tmp_path, valkey.url)) as running:
        yield running
    valkey.stop()


async def test_who_has_logged_in_needs_neither_address_nor_key(gateway: Gateway, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = tmp_path / "tiergate" / "profiles.json"
    assert "`tiergate login`" in await asyncio.to_thread(refusal, "tenant", "list", env=env)
    wrong = await asyncio.to_thread(tiergate, "login", "--base-url", gateway.base_url, env=env, text="tg-wrong\n")
    assert wrong.returncode == 1 and "401" in wrong.stderr and not path.exists()
    for name in ("one", "two"):
        arguments = ("login", "--profile", name, "--base-url", gateway.base_url)
        ended = await asyncio.to_thread(tiergate, *arguments, env=env, text=f"{ADMIN_KEY}\n")
        assert ended.returncode == 0 and ADMIN_KEY not in ended.stdout, ended
    assert path.stat().st_mode & 0o777 == 0o600
    made = await asyncio.to_thread(tiergate, "tenant", "create", "acme", "--json", env=env)
    assert json.loads(made.stdout)["name"] == "acme", made
    listed = await asyncio.to_thread(tiergate, "profiles", "--json", env=env)
    assert [(each["profile"], each["is_current"]) for each in json.loads(listed.stdout)] == [
        ("one", False),
        ("two", True),
    ]
    elsewhere = ("tenant", "list", "--base-url", "http://127.0.0.1:9/v1")
    assert "give --admin-key" in await asyncio.to_thread(refusal, *elsewhere, env=env)
    unknown = env | {"TIERGATE_PROFILE": "three"}
    assert "no profile 'three'" in await asyncio.to_thread(refusal, "tenant", "list", env=unknown)
    await asyncio.to_thread(tiergate, "logout", "--profile", "two", env=env)
    shown = await asyncio.to_thread(tiergate, "tenant", "list", "--json", env=env)
    assert shown.returncode == 0, "the other one is current now"
    path.chmod(0o644)
    assert "chmod 600" in await asyncio.to_thread(refusal, "tenant", "list", env=env)
    path.chmod(0o600)
    path.write_text("{")
    assert "log in again" in await asyncio.to_thread(refusal, "tenant", "list", env=env)


async def test_keys_go_by_id_prefix_or_a_name_that_only_one_has(gateway: Gateway) -> None:
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY}
    await asyncio.to_thread(tiergate, "tenant", "create", "acme", env=env)
    made = []
    for name in ("app", "twin", "twin"):
        ended = await asyncio.to_thread(tiergate, "key", "create", "acme", "--name", name, "--json", env=env)
        made.append(json.loads(ended.stdout))
    for key in ("app", made[1]["prefix"], made[2]["id"]):
        ended = await asyncio.to_thread(tiergate, "key", "change", key, "--scope", "usage", "--json", env=env)
        assert json.loads(ended.stdout)["scopes"] == ["usage"], ended
    assert "2 have the name 'twin'" in await asyncio.to_thread(refusal, "key", "revoke", "twin", env=env)
    assert "no key 'nobody'" in await asyncio.to_thread(refusal, "key", "revoke", "nobody", env=env)
    assert (await asyncio.to_thread(tiergate, "key", "revoke", made[1]["prefix"], env=env)).returncode == 0
    assert (await asyncio.to_thread(tiergate, "key", "revoke", "twin", env=env)).returncode == 0, "one is left"


def test_a_shell_completes_commands() -> None:
    env = {"_TIERGATE_COMPLETE": "complete_bash", "COMP_WORDS": "tiergate ten", "COMP_CWORD": "1"}
    assert "tenant" in tiergate(env=env).stdout.split()
