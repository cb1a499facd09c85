"""The clients that people use against the whole platform: all of them are asked the same, and get the same."""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.clients import install, npm_install
from tests.support.platform import Platform

HERE = Path(__file__).parent
SCRIPTS = HERE / "clients"
ANSWER = "17 + 25 = 42"
EXPECTED: dict[str, Any] = {
    "chat": ANSWER,
    "stream": ANSWER,
    "tool": ["get_weather", {"city": "Paris"}],
    "logprobs": True,
    "shaped": ["minutes"],
    "errors": {
        "wrong_key": ["authentication"],
        "wrong_field": ["bad_request"],
        "wrong_model": ["not_found"],
        "window": ["bad_request", "window"],
    },
    "response": ANSWER,
    "response_stream": ANSWER,
    "response_tool": [["get_weather", {"city": "Paris"}], "It is sunny in Paris with 15 degrees."],
    "response_errors": {
        "wrong_field": ["bad_request"],
        "wrong_model": ["not_found"],
        "wrong_previous": ["not_found"],
        "window": ["bad_request", "window"],
    },
    "refused": ["rate_limit"],
    "retried": ANSWER,
}
BATCH = {
    "status": "completed",
    "counts": [3, 1, 2],
    "answers": {"sum": ANSWER},
    "refused": ["wrong"],
    "broken": [3],
}
WITH_BATCHES = EXPECTED | {"batch": BATCH}


@pytest.fixture
def one_at_a_time(platform: Platform) -> str:
    """A key that may have one request under way."""
    with platform.admin() as admin:
        tenant = admin.post("/tenants", json={"name": f"single-{uuid4().hex[:8]}", "tier": "enterprise"}).json()
        draft = {"tenant_id": tenant["id"], "name": "k", "limits": {"concurrency": 1}}
        made = admin.post("/keys", json=draft)
    assert made.status_code == 201, made.text
    return str(made.json()["key"])


def asked(command: Sequence[str | Path], folder: Path, platform: Platform, one_at_a_time: str) -> Any:
    arguments = [platform.base_url, platform.enterprise_key, one_at_a_time]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("script", "expected"),
    [("official.py", WITH_BATCHES), ("langchain_models.py", EXPECTED)],
    ids=["official", "langchain"],
)
def test_clients_for_python(platform: Platform, one_at_a_time: str, script: str, expected: dict[str, Any]) -> None:
    """LangChain has no batches."""
    assert asked([sys.executable, script], SCRIPTS, platform, one_at_a_time) == expected


def test_the_official_client_for_node(platform: Platform, one_at_a_time: str, tmp_path: Path) -> None:
    shutil.copy(HERE / "package.json", tmp_path)
    shutil.copy(SCRIPTS / "node_checks.mjs", tmp_path)
    npm_install(tmp_path)
    assert asked(["node", "node_checks.mjs"], tmp_path, platform, one_at_a_time) == WITH_BATCHES


@pytest.mark.long
@pytest.mark.timeout(600)
def test_litellm(platform: Platform, one_at_a_time: str, tmp_path: Path) -> None:
    """In an environment of its own: it wants an older release of OpenAI's package than the other tests. Without mcp it
    cannot send tools."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install([python, "-m", "pip", "install", "--quiet", "litellm>=1.80", "mcp"], tmp_path, deadline_s=400)
    assert asked([python, "lite.py"], SCRIPTS, platform, one_at_a_time) == WITH_BATCHES
