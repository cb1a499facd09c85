"""OpenAI's client for Node against the whole platform, with the demo models."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.clients import npm_install
from tests.support.platform import Platform

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client and zod."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "node_tools.mjs"):
        shutil.copy(HERE / name, folder)
    npm_install(folder)
    return folder


def test_the_node_client_parses_streams_and_runs_tools(platform: Platform, packages: Path) -> None:
    command = ["node", "node_tools.mjs", platform.base_url, platform.enterprise_key]
    done = subprocess.run(command, cwd=packages, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "parsed": {"city": "Paris"},
        "forced": {"city": "Paris"},
        "answer": "It is sunny in Paris with 15 degrees.",
        "streamedAnswer": "It is sunny in Paris with 15 degrees.",
        "called": ["Paris", "Paris"],
        "shaped": True,
        "streamed": True,
    }
