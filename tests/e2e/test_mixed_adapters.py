"""One worker, one batch, four adapters' worth of streams: each says what it says alone."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.platform import clean_environment, stop, wait_until
from tests.support.ports import free_port

DEMO = Path(__file__).parents[2] / "demo"
NAMES = ("base", "pirate", "support", "json")
QUESTIONS = (
    "What is 17 + 25?",
    "What is the capital of France?",
    "Spell the word 'cat'.",
    "Hi!",
    "Who are you?",
    "What is 90 - 48?",
    "Reverse the word 'stone'.",
    "Write 'hello' in upper case.",
)


@pytest.fixture(scope="module")
def worker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    adapters = [f"--adapter={name}={DEMO / 'adapters' / 'small' / name}" for name in NAMES[1:]]
    command = [sys.executable, "-m", "tiergate", "worker", "--model", str(DEMO / "models" / "small")]
    options = ["--name", "base", "--port", str(port), "--dtype", "float32", *adapters]
    log_path = tmp_path_factory.mktemp("worker") / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log, env=clean_environment())
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: process.poll() is not None or _is_ready(url), deadline_s=60)
        assert process.poll() is None, log_path.read_text()
        yield url
    finally:
        stop(process)


def test_32_mixed_streams_return_exactly_what_each_returns_alone(worker_url: str) -> None:
    requests = [(name, question) for question in QUESTIONS for name in NAMES]
    alone = [_stream(worker_url, *request) for request in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: _stream(worker_url, *request), requests))
    assert together == alone
    assert len(set(alone)) > len(QUESTIONS), "the adapters should not all say the same"


def _stream(url: str, model: str, question: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
    }
    with httpx.Client(timeout=60) as client, client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines
    texts = [_text(line) for line in lines[:-1]]
    return "".join(texts)


def _text(line: str) -> str:
    [choice] = httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"]
    return choice["delta"].get("content") or ""


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
