"""`tiergate tool`, against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway

SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
CREATE = ("create", "weather", "--description", "The weather", "--url", "https://tools.example.com/w")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9")) as running:
        yield running


async def run(gateway: Gateway, *arguments: str, exit_code: int = 0) -> str:
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY, "WEATHER_KEY": "Bearer xyzzy"}
    ended = await asyncio.to_thread(tiergate, "tool", *arguments, env=env)
    assert ended.returncode == exit_code, ended
    return ended.stderr if exit_code else ended.stdout


async def show(gateway: Gateway, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(await run(gateway, "show", name, "--json"))
    return shown


async def test_a_tool_is_created_shown_listed_updated_and_deleted(gateway: Gateway, tmp_path: Path) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    (tmp_path / "schema.json").write_text(SCHEMA)
    made = await run(gateway, *CREATE, "--parameters", str(tmp_path / "schema.json"), "--secret-env", "WEATHER_KEY")
    await run(gateway, "create", "stocks", *CREATE[2:], "--parameters", SCHEMA, "--tenant", "acme", "--timeout", "2")
    shown = await show(gateway, "weather")
    assert shown["parameters"] == json.loads(SCHEMA) and shown["credential_header"] == "Authorization"
    listed = await run(gateway, "list")
    assert listed.count("\n") == 3 and shown["id"] in listed
    assert "xyzzy" not in made + listed + json.dumps(shown)
    await run(gateway, "update", "weather", "--disable", "--max-rounds", "2", "--no-credential")
    changed = await show(gateway, "weather")
    assert (changed["is_enabled"], changed["max_rounds"], changed["credential_header"]) == (False, 2, None)
    await run(gateway, "delete", shown["id"])
    assert "there is no tool 'weather'" in await run(gateway, "show", "weather", exit_code=2)
    assert (await show(gateway, "stocks"))["timeout_s"] == 2


async def test_what_cannot_be_meant_is_told_in_one_line(gateway: Gateway) -> None:
    assert "no JSON" in await run(gateway, *CREATE, "--parameters", "{", exit_code=2)
    assert "--parameters: /none" in await run(gateway, *CREATE, "--parameters", "/none", exit_code=2)
    told = await run(gateway, *CREATE, "--parameters", SCHEMA, "--secret-env", "NOT_THERE", exit_code=2)
    assert "'NOT_THERE' is not set" in told
    assert "--secret-env" in await run(gateway, *CREATE, "--parameters", SCHEMA, "--header", "X", exit_code=2)
    assert "400: parameters" in await run(gateway, *CREATE, "--parameters", '{"type": "array"}', exit_code=1)
