"""`tiergate guardrail`, against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import tiergate
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway

URL = ("--url", "https://moderation.example.com/v1/moderations")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9")) as running:
        yield running


async def run(gateway: Gateway, *arguments: str, exit_code: int = 0) -> str:
    env = {"TIERGATE_BASE_URL": gateway.base_url, "TIERGATE_ADMIN_KEY": ADMIN_KEY, "MODERATION": "Bearer xyzzy"}
    ended = await asyncio.to_thread(tiergate, "guardrail", *arguments, env=env)
    assert ended.returncode == exit_code, ended
    return ended.stderr if exit_code else ended.stdout


async def test_a_guardrail_is_added_listed_set_and_removed(gateway: Gateway) -> None:
    await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    made = await run(gateway, "add", "words", *URL, "--authorization-env", "MODERATION", "--category", "hate", "--json")
    assert json.loads(made)["has_authorization"] is True and json.loads(made)["categories"] == ["hate"]
    await run(gateway, "add", "own", *URL, "--tenant", "acme", "--checks", "input", "--on-failure", "open")
    listed = await run(gateway, "list", "--json")
    assert [row["name"] for row in json.loads(listed)] == ["words", "own"]
    assert "xyzzy" not in made + listed
    changed = json.loads(
        await run(
            gateway,
            "set",
            "words",
            "--no-authorization",
            "--all-categories",
            "--window-chars",
            "50",
            "--disable",
            "--json",
        )
    )
    assert (changed["has_authorization"], changed["categories"], changed["window_chars"]) == (False, [], 50)
    assert changed["is_enabled"] is False
    await run(gateway, "remove", "words")
    assert [row["name"] for row in json.loads(await run(gateway, "list", "--json"))] == ["own"]


async def test_what_cannot_be_meant_is_told_in_one_line(gateway: Gateway) -> None:
    assert "there is no guardrail 'none'" in await run(gateway, "remove", "none", exit_code=2)
    assert "'NOT_THERE' is not set" in await run(
        gateway, "add", "a", *URL, "--authorization-env", "NOT_THERE", exit_code=2
    )
    told = await run(gateway, "add", "a", "--url", "http://127.0.0.1/", exit_code=1)
    assert "400: url" in told and told.count("\n") == 1
